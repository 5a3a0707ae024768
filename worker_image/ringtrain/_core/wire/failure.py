"""Failure as it is sent between ranks, so that every rank of a world raises the same error."""

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
    """Reason why a world has ended. `rank`: the lost rank if `kind` is `lost`."""

    kind: Kind
    message: str
    rank: int = -1

    def error(self) -> RingtrainError:
        """Return the failure as a new exception.

        (Raising one exception object twice would collect the tracebacks of both raises.)
        """
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
    """Error: a rank refuses a request and sends the reason, which the transport passes to the caller."""

    def __init__(self, failure: WorldFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure

    @property
    def is_from_another_world(self) -> bool:
        """Return whether the rank that refused is in another world than the caller."""
        return self.failure.kind == "stranger"


class NotAPeer(PullRefused):
    """Error: a request is refused because it has no valid session and so does not come from a rank of this world."""
