"""Elastic states, importable as from `horovod.common.elastic`."""

from ringtrain.elastic import ObjectState, State

__all__ = ["ObjectState", "State"]
