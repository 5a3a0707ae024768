"""`dtj`, the Python client of jobs, and jobs on this machine."""
