"""Process groups: communicators with the executors that run their collectives in order; this process's world."""
