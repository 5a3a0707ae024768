"""Errors under the names of `horovod.common.exceptions`."""

from ringtrain.elastic import HostsUpdatedInterrupt
from ringtrain.errors import RingtrainError as HorovodInternalError


class HorovodVersionMismatchError(ImportError):
    """Exception that is never raised, because nothing is compiled against a version of a framework."""


__all__ = ["HorovodInternalError", "HorovodVersionMismatchError", "HostsUpdatedInterrupt"]
