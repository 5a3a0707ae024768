"""Collectives, the process groups that run them in order, and this process's world."""
