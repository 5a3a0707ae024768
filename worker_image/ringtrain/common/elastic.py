"""Elastic states under the names of `horovod.common.elastic`."""

from ringtrain.elastic import ObjectState, State

__all__ = ["ObjectState", "State"]
