"""The collectives that users call on numpy arrays."""
