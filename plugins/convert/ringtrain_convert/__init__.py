"""Conversion of other operators' jobs to DistributedTrainingJobs. One module per kind of job."""
