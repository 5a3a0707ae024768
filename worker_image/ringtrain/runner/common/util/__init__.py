"""Horovod's `horovod.runner.common.util`, as far as scripts import from it."""
