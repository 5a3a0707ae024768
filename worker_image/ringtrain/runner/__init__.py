"""Horovod's `horovod.runner`, as far as scripts import from it."""
