"""Decisions about each kind of pod: which are missing, lost or too many, and their part of the status."""
