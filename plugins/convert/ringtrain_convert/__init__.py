"""Converters of other operators' jobs to DistributedTrainingJobs, with one module per kind of job."""
