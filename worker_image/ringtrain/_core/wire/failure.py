"""A failure as it travels: every rank of a world raises the same error from it."""

import json
from dataclasses import asdict, dataclass
from typing import Final, Literal

from ringtrain.errors import ConfigurationError, MismatchError, PeerLost, RingtrainError

# stranger: not of a world, but of one request, which shows no session of this world
Kind = Literal["lost", "mismatch", "configuration", "internal", "stranger"]
# gRPC carries a refusal in a trailer, and trailers are limited to 8 KiB.
_MESSAGE_LIMIT: Final = 3000


@dataclass(frozen=True)
class WorldFailure:
    """Why a world can't go on. `rank` is the culprit of a `lost`."""

    kind: Kind
    message: str
    rank: int = -1

    def error(self) -> RingtrainError:
        """A new exception: one object raised twice would collect the tracebacks of both."""
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
    """A service does not answer, and says why. Crosses the transport as it is."""

    def __init__(self, failure: WorldFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure

    @property
    def is_of_a_stranger(self) -> bool:
        """Whether who answered is in another world than who asked."""
        return self.failure.kind == "stranger"


class NotAPeer(PullRefused):
    """The request does not come from a peer: it has no session."""
