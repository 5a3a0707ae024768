"""The job's status: its model, and the functions that derive it from what was observed."""
