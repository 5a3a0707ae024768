"""Namespace for the parts of `horovod.runner.common` that scripts import."""
