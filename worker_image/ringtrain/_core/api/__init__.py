"""What users call on numpy arrays and plain objects: the collectives of a process set."""
