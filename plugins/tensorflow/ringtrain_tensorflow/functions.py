"""Names that scripts import from `horovod.tensorflow.functions`."""

from ringtrain_tensorflow.objects import allgather_object, broadcast_object, broadcast_object_fn
from ringtrain_tensorflow.variables import broadcast_variables

__all__ = ["allgather_object", "broadcast_object", "broadcast_object_fn", "broadcast_variables"]
