"""Sinks for a run's reports in addition to its own files: one module for each service, behind one interface."""
