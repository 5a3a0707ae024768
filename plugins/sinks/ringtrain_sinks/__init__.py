"""Sinks, which copy a run's reports to MLflow, W&B, TensorBoard or OpenTelemetry: one module for each service."""
