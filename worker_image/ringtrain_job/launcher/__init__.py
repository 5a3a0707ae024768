"""The job's launcher: waits for all agents, decides how the attempt ended, stores logs, serves `/status`."""
