"""The log store: output of ranks becomes records, and records become files that survive a kill."""
