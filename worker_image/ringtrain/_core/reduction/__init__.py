"""Arithmetic of reductions, without communication: operations, the fold in rank order, cuts of buffers."""
