"""Modules of `horovod.common` that scripts import."""
