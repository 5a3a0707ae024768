"""Namespace for the parts of `horovod.runner.common.util` that scripts import."""
