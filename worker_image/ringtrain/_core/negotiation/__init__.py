"""Collectives that ranks match by name and may submit in any order, for the framework adapters."""
