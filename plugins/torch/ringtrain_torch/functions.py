"""Module with the names of `horovod.torch.functions`, for scripts that import them."""

from ringtrain_torch.objects import allgather_object, broadcast_object
from ringtrain_torch.state import broadcast_optimizer_state, broadcast_parameters

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]
