"""Models of a job's status, and the functions that derive it from what was observed."""
