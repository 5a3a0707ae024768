"""Kueue: creation, observation and changes of a job's Workload."""
