"""Placement of a job's pods: gang schedulers, autoscalers that add nodes, Kueue, and the operator's own queue."""
