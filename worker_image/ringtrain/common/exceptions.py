"""Errors that scripts import from `horovod.common.exceptions`, by the same names."""

from ringtrain.elastic.interrupt import HostsUpdatedInterrupt
from ringtrain.errors import RingtrainError as HorovodInternalError

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt"]
