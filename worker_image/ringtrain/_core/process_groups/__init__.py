"""Collectives, and the groups that run them in order: communicators with executors; this process's world."""
