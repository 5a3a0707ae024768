"""Arithmetic of reductions, without communication: operations, folding of contributions, and division of buffers."""
