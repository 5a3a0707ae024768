"""Collectives by name, in any order: what the framework adapters share above the ring."""
