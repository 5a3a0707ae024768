"""Use of Kueue: creation, observation and changes of the Workload that requests quota for a job."""
