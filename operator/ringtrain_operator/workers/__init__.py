"""One module per kind of pod: missing pods, lost pods, surplus pods, and their part of the status."""
