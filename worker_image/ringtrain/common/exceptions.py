"""Errors, importable as from `horovod.common.exceptions`."""

from ringtrain.elastic import HostsUpdatedInterrupt
from ringtrain.errors import RingtrainError as HorovodInternalError


class HorovodVersionMismatchError(ImportError):
    """Error of Horovod that ringtrain never raises, because it is not compiled against a framework's version."""


__all__ = ["HorovodInternalError", "HorovodVersionMismatchError", "HostsUpdatedInterrupt"]
