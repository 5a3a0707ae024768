"""How a call ended, from gRPC's status codes to ours: the same whichever library carried it."""

from typing import Final

from ringtrain._core.transport.base import Broken, How
from ringtrain._core.wire.failure import PullRefused, WorldFailure


class Status:
    """Those of gRPC's codes that are used here."""

    OK: Final = 0
    UNKNOWN: Final = 2
    DEADLINE_EXCEEDED: Final = 4
    FAILED_PRECONDITION: Final = 9
    UNIMPLEMENTED: Final = 12
    INTERNAL: Final = 13
    UNAVAILABLE: Final = 14


def status_of(error: PullRefused | Broken) -> tuple[int, str]:
    """The code and message by which a service's answer travels."""
    if isinstance(error, PullRefused):
        return Status.FAILED_PRECONDITION, error.failure.encode()
    return Status.UNAVAILABLE, str(error)


def error_of(code: int, message: str) -> PullRefused | Broken:
    """What a status other than OK means."""
    if code == Status.FAILED_PRECONDITION:
        return PullRefused(WorldFailure.decode(message))
    if code == Status.UNKNOWN:  # the peer's handler raised: a defect, and the peer has printed it
        return PullRefused(WorldFailure("internal", f"a peer failed to answer: {message}"))
    if code == Status.DEADLINE_EXCEEDED:
        return Broken(How.TIMEOUT, "nothing within the deadline")
    return Broken(How.CLOSED, message)
