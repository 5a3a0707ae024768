"""The resource: frozen models of a DistributedTrainingJob, the source of the CRD and of the reference page."""
