"""Ranks of an elastic job: start of processes, assignment to worlds, and stop."""
