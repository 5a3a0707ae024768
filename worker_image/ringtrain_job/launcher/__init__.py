"""The job's coordinator: assembles the gang, decides the verdict, stores the logs, serves `/status` and `/metrics`."""
