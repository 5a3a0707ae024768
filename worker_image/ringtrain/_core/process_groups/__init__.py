"""Public collectives, the process groups that run them in order, and this process's membership in a world."""
