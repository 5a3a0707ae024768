"""Environments of ranks in pods, which are processes of this machine."""

from collections.abc import Mapping

from support.ports import free_addresses


class Pods:
    """Return environments of ranks on this machine, two or `each` in a pod."""

    def __init__(self, pods: int, timeout_s: float = 60, each: int = 2) -> None:
        self.size = each * pods
        self._each = each
        self._addresses = ",".join(free_addresses(self.size))
        self._timeout_s = timeout_s

    def __call__(self, rank: int) -> Mapping[str, str]:
        return {
            "RINGTRAIN_RANK": str(rank),
            "RINGTRAIN_SIZE": str(self.size),
            "RINGTRAIN_LOCAL_RANK": str(rank % self._each),
            "RINGTRAIN_LOCAL_SIZE": str(self._each),
            "RINGTRAIN_CROSS_RANK": str(rank // self._each),
            "RINGTRAIN_CROSS_SIZE": str(self.size // self._each),
            "RINGTRAIN_RING_ADDRESSES": self._addresses,
            "RINGTRAIN_TIMEOUT": str(self._timeout_s),
        }
