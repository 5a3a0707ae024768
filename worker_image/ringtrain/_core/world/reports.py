"""What a rank notices and hands to its monitor."""

from dataclasses import dataclass

from ringtrain._core.wire.failure import WorldFailure


@dataclass(frozen=True)
class Activity:
    """The collective that a rank is in, for messages and for probing: `allreduce #7 "conv1.weight"`."""

    label: str
    process_set: int
    sequence: int


@dataclass(frozen=True)
class Closed:
    """The connection to `peer` broke."""

    peer: int
    detail: str
    activity: Activity | None


@dataclass(frozen=True)
class Stalled:
    """Nothing came from `peers` within the deadline."""

    peers: tuple[int, ...]
    waited_s: float
    activity: Activity


Report = Closed | Stalled | WorldFailure
