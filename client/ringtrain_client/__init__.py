"""Client side of ringtrain: the command `dtj`, the Python API for jobs, and a runner of jobs on this machine."""
