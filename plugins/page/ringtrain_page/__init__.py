"""The page of a run: everything that its log store tells, as one HTML file."""
