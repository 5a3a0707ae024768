"""Namespace for the parts of `horovod.runner` that scripts import."""
