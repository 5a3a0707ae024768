"""HTML page of a run, with all data of its log folder: served live by the launcher, or written as one file."""
