"""Kueue: the Workload of a job as it is made, seen and changed."""
