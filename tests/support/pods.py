"""Environments of ranks in pods, all of them processes of this machine."""

from collections.abc import Mapping

from support.ports import free_addresses


class Pods:
    """Environments of ranks in pods of two on this machine."""

    def __init__(self, pods: int, timeout_s: float = 60) -> None:
        self.size = 2 * pods
        self._addresses = ",".join(free_addresses(self.size))
        self._timeout_s = timeout_s

    def __call__(self, rank: int) -> Mapping[str, str]:
        return {
            "RINGTRAIN_RANK": str(rank),
            "RINGTRAIN_SIZE": str(self.size),
            "RINGTRAIN_LOCAL_RANK": str(rank % 2),
            "RINGTRAIN_LOCAL_SIZE": "2",
            "RINGTRAIN_CROSS_RANK": str(rank // 2),
            "RINGTRAIN_CROSS_SIZE": str(self.size // 2),
            "RINGTRAIN_RING_ADDRESSES": self._addresses,
            "RINGTRAIN_TIMEOUT": str(self._timeout_s),
        }
