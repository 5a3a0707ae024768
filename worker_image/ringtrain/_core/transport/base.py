"""Interface between the world and the transport of its bytes."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from enum import Enum
from typing import Final, Protocol

from ringtrain._core.wire.failure import PullRefused, WorldFailure
from ringtrain._core.wire.messages import WireFrame


class StreamEnd(Enum):
    """Reason why a stream or request ended without its answer."""

    CLOSED = "closed"  # the connection broke, or could not be made
    TIMEOUT = "timeout"  # nothing within the deadline
    CANCELLED = "cancelled"  # cancelled by this side


class StreamBroken(Exception):
    """A peer did not answer. A peer that answers with a reason raises `PullRefused` instead."""

    def __init__(self, how: StreamEnd, detail: str) -> None:
        super().__init__(detail)
        self.how = how
        self.detail = detail


class PeerUnreached(StreamBroken):
    """The request did not arrive: the connection could not be made, or broke before."""

    def __init__(self, detail: str) -> None:
        super().__init__(StreamEnd.CLOSED, detail)


class UnexpectedFrame(Exception):
    """A peer sent another frame than expected: a defect, never a user's mistake."""


class FrameStream(Protocol):
    """Frames from one peer, in order. Both reading methods raise StreamBroken, PullRefused or UnexpectedFrame."""

    def read_into(self, head: bytes, target: memoryview) -> None:
        """Wait for the next frame, which must be `head` and as many bytes as `target` has, and store it there.

        `target`: writable bytes. Its content is undefined after an error.
        """

    def end(self) -> None:
        """Wait for the peer's end of the stream, and release the connection."""

    def cancel(self) -> None:
        """Make a waiting read raise, from any thread."""

    def close(self) -> None:
        """Discard the rest of the stream, and release the connection; only from the reading thread."""


class TransportCaller(Protocol):
    """Client of a request that is being served."""

    def remaining_s(self) -> float:
        """Return the seconds until the caller gives up."""

    def is_active(self) -> bool: ...

    def flush(self) -> None:
        """Send all frames handed out before, because the next one may take a while."""

    def on_end(self, callback: Callable[[], None]) -> None:
        """Register a callback for the case that the caller cancels or ends."""


class TransportService(Protocol):
    """Handlers of a rank's incoming requests.

    `answer` and `pull` may block, and raise PullRefused, or StreamBroken (CLOSED) if the rank is leaving.
    """

    def is_peer(self, rank: int, session: bytes) -> bool:
        """Return whether `session` was issued to the peer `rank`. Does not block."""

    def answer(self, method: str, request: bytes, caller: TransportCaller) -> bytes: ...

    def pull(self, request: bytes, caller: TransportCaller) -> Iterator[WireFrame]:
        """Yield frames. The caller reads a frame's memory before it requests the next one, and not later."""


class Transport(Protocol):
    """One rank's connections to all others."""

    @property
    def data_port(self) -> int | None:
        """Return the port for `pull` if it differs from the port for other requests. Known after `serve`."""

    def use_session(self, peer: int, session: bytes) -> None:
        """Send `session` with every later request to `peer`."""

    def use_data_port(self, peer: int, port: int, request: bytes) -> None:
        """Pull from `peer` on this port, if it can be reached. `request`: a request with the session, which the peer
        refuses.
        """

    def serve(self, service: TransportService) -> None:
        """Begin to answer. Raises ConfigurationError if the own address can't be used."""

    def ask(self, peer: int, method: str, request: bytes, timeout_s: float, patient: bool = False) -> "Future[bytes]":
        """Send one request.

        The future raises StreamBroken (PeerUnreached if the request did not arrive) or PullRefused.

        `patient`: wait for a peer that is not up.
        """

    def pull(self, peer: int, request: bytes, timeout_s: float) -> FrameStream: ...

    def close(self, grace_s: float) -> None:
        """Let answers in progress finish within `grace_s`, then close everything."""


class NoPeersTransport:
    """Transport of a world of one rank, without peers."""

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
    """gRPC status codes that are used here."""

    OK: Final = 0
    UNKNOWN: Final = 2
    DEADLINE_EXCEEDED: Final = 4
    FAILED_PRECONDITION: Final = 9
    UNIMPLEMENTED: Final = 12
    INTERNAL: Final = 13
    UNAVAILABLE: Final = 14


def status_of(error: PullRefused | StreamBroken) -> tuple[int, str]:
    """Return the gRPC code and message for an error of a service."""
    if isinstance(error, PullRefused):
        return TransportStatus.FAILED_PRECONDITION, error.failure.encode()
    return TransportStatus.UNAVAILABLE, str(error)


def transport_error_of(code: int, message: str) -> PullRefused | StreamBroken:
    """Return the error for a status other than OK."""
    if code == TransportStatus.FAILED_PRECONDITION:
        return PullRefused(WorldFailure.decode(message))
    if code == TransportStatus.UNKNOWN:  # the peer's handler raised: a defect, and the peer has printed it
        return PullRefused(WorldFailure("internal", f"a peer failed to answer: {message}"))
    if code == TransportStatus.DEADLINE_EXCEEDED:
        return StreamBroken(StreamEnd.TIMEOUT, "nothing within the deadline")
    return StreamBroken(StreamEnd.CLOSED, message)
