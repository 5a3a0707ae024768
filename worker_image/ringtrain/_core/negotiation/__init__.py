"""Collectives paired by name, submitted in any order: used by the framework adapters."""
