"""Collectives: over memory and gRPC, in threads and in real processes."""
