"""Configuration of this rank for the ring."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RingConfig:
    """Configuration of rank `rank` of `size` ranks. `addresses`: `host:port` of each rank.

    `timeout_s`: how long to wait for a process that does not answer. `stall_timeout_s`: how long a collective waits for
    one that answers but does not join; `stall_warning_s`: time after which it is logged. `local_size`: ranks of this
    one's host or pod. `transport`: the value of RINGTRAIN_TRANSPORT.
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
        """Return the time limit of a request that is answered at once."""
        return 0.08 * self.timeout_s

    @property
    def settle_s(self) -> float:
        """Return how long a broken connection waits for the peer's announcement of an error."""
        return min(0.5, self.timeout_s / 40)
