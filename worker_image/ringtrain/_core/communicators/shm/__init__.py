"""Collectives of ranks that share a machine and a pod, through memory that all of them map."""
