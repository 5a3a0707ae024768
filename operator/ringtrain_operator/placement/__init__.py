"""Influences on where and when a job's pods run: gang schedulers, autoscalers, Kueue, and the operator's own queue."""
