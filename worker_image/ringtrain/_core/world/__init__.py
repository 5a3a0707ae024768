"""World: its ranks, their discovery and authentication, and the detection of lost ranks."""
