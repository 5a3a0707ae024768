"""Models of a DistributedTrainingJob, from which the CRD and the reference page are generated."""
