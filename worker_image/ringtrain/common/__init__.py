"""Counterparts of the modules in `horovod.common` that training scripts import."""
