"""Failure on the wire, from which every rank of a world raises the same error."""

import json
from dataclasses import asdict, dataclass
from typing import Final, Literal

from ringtrain.errors import ConfigurationError, MismatchError, PeerLost, RingtrainError

# stranger: concerns only one request, which has no session of this world
Kind = Literal["lost", "mismatch", "configuration", "internal", "stranger"]
# gRPC sends a refusal in a trailer, and trailers are limited to 8 KiB.
_MESSAGE_LIMIT: Final = 3000


@dataclass(frozen=True)
class WorldFailure:
    """Reason for the end of a world. `rank`: the lost rank if `kind` is `lost`."""

    kind: Kind
    message: str
    rank: int = -1

    def error(self) -> RingtrainError:
        """Return a new exception: one object raised twice would collect both tracebacks."""
        if self.kind == "lost":
            return PeerLost(self.rank, self.message)
        if self.kind == "mismatch":
            return MismatchError(self.message)
        if self.kind in ("configuration", "stranger"):
            return ConfigurationError(self.message)
        return RingtrainError(self.message)

    def encode(self) -> str:
        return json.dumps(asdict(self) | {"message": self.message[:_MESSAGE_LIMIT]})

    @staticmethod
    def decode(text: str) -> "WorldFailure":
        try:
            value = json.loads(text)
            return WorldFailure(value["kind"], str(value["message"]), int(value["rank"]))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return WorldFailure("internal", text)


class PullRefused(Exception):
    """A service refuses a request, with the reason. Passes through the transport unchanged."""

    def __init__(self, failure: WorldFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure

    @property
    def is_from_another_world(self) -> bool:
        """Return whether the answering rank is in another world than the caller."""
        return self.failure.kind == "stranger"


class NotAPeer(PullRefused):
    """The request does not come from a peer: it has no session."""
