"""The seam between the world and what carries its bytes."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from enum import Enum
from typing import Final, Protocol

from ringtrain._core.wire.failure import PullRefused, WorldFailure
from ringtrain._core.wire.messages import WireFrame


class StreamEnd(Enum):
    """How a stream or question ended without its answer."""

    CLOSED = "closed"  # the connection broke, or could not be made
    TIMEOUT = "timeout"  # nothing within the deadline
    CANCELLED = "cancelled"  # this side gave up


class StreamBroken(Exception):
    """A peer did not answer. A peer that answers with a reason raises `PullRefused` instead."""

    def __init__(self, how: StreamEnd, detail: str) -> None:
        super().__init__(detail)
        self.how = how
        self.detail = detail


class PeerUnreached(StreamBroken):
    """The question never arrived: the connection could not be made, or broke before."""

    def __init__(self, detail: str) -> None:
        super().__init__(StreamEnd.CLOSED, detail)


class UnexpectedFrame(Exception):
    """A peer sent something else than it should have: a defect, never a user's mistake."""


class FrameStream(Protocol):
    """Frames from one peer, in order. Both ways to read raise StreamBroken, PullRefused or UnexpectedFrame."""

    def read_into(self, head: bytes, target: memoryview) -> None:
        """Wait for the next frame, which must be `head` and as much as `target` holds, and store it there.

        `target`: writable bytes. After an error its content is not defined.
        """

    def end(self) -> None:
        """Wait until the peer has said that there is nothing more, and let go of the connection."""

    def cancel(self) -> None:
        """Make a read that waits raise, from any thread."""

    def close(self) -> None:
        """Give up what has not come yet, and let go of the connection; only from the thread that reads."""


class TransportCaller(Protocol):
    """The other end of a request that is being served."""

    def remaining_s(self) -> float:
        """Seconds until the caller gives up."""

    def is_active(self) -> bool: ...

    def flush(self) -> None:
        """Send what was handed out so far: it may be a while until more comes."""

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call back when the caller has given up or is gone."""


class TransportService(Protocol):
    """What a rank answers.

    `answer` and `pull` may block, and raise PullRefused, or StreamBroken (CLOSED) if the rank is leaving.
    """

    def is_peer(self, rank: int, session: bytes) -> bool:
        """Whether `session` is what the peer `rank` was given. At once."""

    def answer(self, method: str, request: bytes, caller: TransportCaller) -> bytes: ...

    def pull(self, request: bytes, caller: TransportCaller) -> Iterator[WireFrame]:
        """Yield frames. The memory of each is read before the next one is asked for, and not after."""


class Transport(Protocol):
    """One rank's connections to all others."""

    @property
    def data_port(self) -> int | None:
        """Where this rank answers `pull`, if not with all the rest. Known once it serves."""

    def use_session(self, peer: int, session: bytes) -> None:
        """Show `session` with every request to `peer` from now on."""

    def use_data_port(self, peer: int, port: int, request: bytes) -> None:
        """Pull from `peer` there, if it can be reached. `request`: shows the session, and is refused."""

    def serve(self, service: TransportService) -> None:
        """Begin to answer. Raises ConfigurationError if the own address can't be used."""

    def ask(self, peer: int, method: str, request: bytes, timeout_s: float, patient: bool = False) -> "Future[bytes]":
        """Send one request. The future raises StreamBroken (PeerUnreached where the peer never had the request) or
        PullRefused. `patient`: wait for a peer that is not up."""

    def pull(self, peer: int, request: bytes, timeout_s: float) -> FrameStream: ...

    def close(self, grace_s: float) -> None:
        """Let answers under way finish within `grace_s`, then close everything."""


class NoPeersTransport:
    """The transport of a world of one: nobody asks this rank, and it has nobody to ask."""

    data_port = None

    def use_session(self, peer: int, session: bytes) -> None: ...

    def use_data_port(self, peer: int, port: int, request: bytes) -> None: ...

    def serve(self, service: TransportService) -> None: ...

    def close(self, grace_s: float) -> None: ...

    def ask(self, peer: int, method: str, request: bytes, timeout_s: float, patient: bool = False) -> "Future[bytes]":
        raise StreamBroken(StreamEnd.CLOSED, "no such rank")

    def pull(self, peer: int, request: bytes, timeout_s: float) -> FrameStream:
        raise StreamBroken(StreamEnd.CLOSED, "no such rank")


class TransportStatus:
    """Those of gRPC's codes that are used here."""

    OK: Final = 0
    UNKNOWN: Final = 2
    DEADLINE_EXCEEDED: Final = 4
    FAILED_PRECONDITION: Final = 9
    UNIMPLEMENTED: Final = 12
    INTERNAL: Final = 13
    UNAVAILABLE: Final = 14


def status_of(error: PullRefused | StreamBroken) -> tuple[int, str]:
    """The code and message by which a service's answer travels."""
    if isinstance(error, PullRefused):
        return TransportStatus.FAILED_PRECONDITION, error.failure.encode()
    return TransportStatus.UNAVAILABLE, str(error)


def transport_error_of(code: int, message: str) -> PullRefused | StreamBroken:
    """What a status other than OK means."""
    if code == TransportStatus.FAILED_PRECONDITION:
        return PullRefused(WorldFailure.decode(message))
    if code == TransportStatus.UNKNOWN:  # the peer's handler raised: a defect, and the peer has printed it
        return PullRefused(WorldFailure("internal", f"a peer failed to answer: {message}"))
    if code == TransportStatus.DEADLINE_EXCEEDED:
        return StreamBroken(StreamEnd.TIMEOUT, "nothing within the deadline")
    return StreamBroken(StreamEnd.CLOSED, message)
