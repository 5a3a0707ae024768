"""States that scripts import from `horovod.common.elastic`, by the same names."""

from ringtrain.elastic import ObjectState, State

__all__ = ["ObjectState", "State"]
