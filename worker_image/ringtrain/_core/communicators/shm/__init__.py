"""Collectives of ranks in one pod, through shared memory."""
