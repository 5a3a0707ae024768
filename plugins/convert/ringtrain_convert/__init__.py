"""From other operators' jobs to ours. One file a kind of job."""
