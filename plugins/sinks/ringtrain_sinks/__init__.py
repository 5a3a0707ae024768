"""Where a run's reports go beside its own files: one file for each service, behind one interface."""
