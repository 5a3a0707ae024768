"""Settings of a rank's connections to the other ranks."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RingConfig:
    """Settings by which rank `rank` of `size` connects to the others. `addresses`: `host:port` of each rank.

    `timeout_s`: how long to wait for a process that does not answer. `stall_timeout_s`: how long a collective waits for
    a process that answers but does not join; `stall_warning_s`: time after which such a process is logged.
    `local_size`: number of ranks on this rank's host or in its pod. `transport`: the value of RINGTRAIN_TRANSPORT.
    """

    rank: int
    size: int
    addresses: tuple[str, ...]
    generation: int = 1
    token: bytes | None = None
    timeout_s: float = 60.0
    stall_timeout_s: float = 600.0
    local_size: int = 1
    stall_warning_s: float = 30.0
    transport: str = "auto"

    @property
    def peers(self) -> tuple[int, ...]:
        return tuple(rank for rank in range(self.size) if rank != self.rank)

    def name(self, rank: int) -> str:
        return f"rank {rank} ({self.addresses[rank]})"

    @property
    def probe_timeout_s(self) -> float:
        """Return how many seconds a peer may take for a reply that it can send at once."""
        return 0.08 * self.timeout_s

    @property
    def settle_s(self) -> float:
        """Return how many seconds to wait, after a connection broke, for the peer to announce why."""
        return min(0.5, self.timeout_s / 40)
