"""Who places a job's pods: gang schedulers, autoscalers that make nodes, Kueue, and the operator's own line."""
