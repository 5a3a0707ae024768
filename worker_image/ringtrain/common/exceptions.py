"""Errors that scripts import from `horovod.common.exceptions`, by the same names."""

from ringtrain.elastic import HostsUpdatedInterrupt
from ringtrain.errors import RingtrainError as HorovodInternalError


class HorovodVersionMismatchError(ImportError):
    """Never raised: nothing is compiled against a version of a framework."""


__all__ = ["HorovodInternalError", "HorovodVersionMismatchError", "HostsUpdatedInterrupt"]
