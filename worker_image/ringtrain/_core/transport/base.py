"""Interface of a transport, by which a world sends requests and streams of frames between ranks."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from enum import Enum
from typing import Final, Protocol

from ringtrain._core.wire.failure import PullRefused, WorldFailure
from ringtrain._core.wire.messages import WireFrame


class StreamEnd(Enum):
    """Reason why a stream or request ended without an answer of the peer."""

    CLOSED = "closed"  # the connection broke, or could not be made
    TIMEOUT = "timeout"  # nothing within the deadline
    CANCELLED = "cancelled"  # cancelled by this side


class StreamBroken(Exception):
    """Error: a peer did not answer. If a peer answers with a refusal, `PullRefused` is raised instead."""

    def __init__(self, how: StreamEnd, detail: str) -> None:
        super().__init__(detail)
        self.how = how
        self.detail = detail


class PeerUnreached(StreamBroken):
    """Error: the request did not reach the peer, because no connection could be made, or the connection broke first."""

    def __init__(self, detail: str) -> None:
        super().__init__(StreamEnd.CLOSED, detail)


class UnexpectedFrame(Exception):
    """Error: a peer sent an unexpected frame, which is a defect of ringtrain, not a mistake of the user."""


class FrameStream(Protocol):
    """Stream of frames from one peer, in order. Reads raise StreamBroken, PullRefused or UnexpectedFrame."""

    def read_into(self, head: bytes, target: memoryview) -> None:
        """Wait for the next frame from the peer, check that it has the header `head` and the length of `target`, and
        store its payload there.

        `target`: writable bytes. Its content is undefined after an error.
        """

    def end(self) -> None:
        """Wait for the end of the stream, and release its connection."""

    def cancel(self) -> None:
        """Make a waiting read raise StreamBroken. Any thread may call this."""

    def close(self) -> None:
        """Discard the rest of the stream and release its connection. Only the reading thread may call this."""


class TransportCaller(Protocol):
    """Peer whose request this rank is serving."""

    def remaining_s(self) -> float:
        """Return the seconds until the caller's timeout."""

    def is_active(self) -> bool: ...

    def flush(self) -> None:
        """Send buffered frames at once. Call it before a frame that may take long to produce."""

    def on_end(self, callback: Callable[[], None]) -> None:
        """Register a function to call if the caller cancels the request or disconnects."""


class TransportService(Protocol):
    """Interface of the object that answers a rank's incoming requests.

    `answer` and `pull` may block, and raise PullRefused, or StreamBroken (CLOSED) if the rank is leaving.
    """

    def is_peer(self, rank: int, session: bytes) -> bool:
        """Return whether `session` was issued to the peer `rank`. Does not block."""

    def answer(self, method: str, request: bytes, caller: TransportCaller) -> bytes: ...

    def pull(self, request: bytes, caller: TransportCaller) -> Iterator[WireFrame]:
        """Yield the requested frames. The transport reads a frame's memory before it asks for the next one."""


class Transport(Protocol):
    """Interface of one rank's connections to all other ranks."""

    @property
    def data_port(self) -> int | None:
        """Return the port for `pull`, known after `serve`; None if `pull` uses the port of other requests."""

    def use_session(self, peer: int, session: bytes) -> None:
        """Authenticate every later request to `peer` by `session`."""

    def use_data_port(self, peer: int, port: int, request: bytes) -> None:
        """Use this port of `peer` for `pull` if it can be reached. `request`: sent first, as a test."""

    def serve(self, service: TransportService) -> None:
        """Start to answer requests with `service`. Raises ConfigurationError if this rank's address can't be used."""

    def ask(self, peer: int, method: str, request: bytes, timeout_s: float, patient: bool = False) -> "Future[bytes]":
        """Send a request to `peer` and return the future of its reply.

        The future raises StreamBroken (PeerUnreached if the request did not arrive) or PullRefused.

        `patient`: whether to wait for a peer that does not listen yet.
        """

    def pull(self, peer: int, request: bytes, timeout_s: float) -> FrameStream: ...

    def close(self, grace_s: float) -> None:
        """Wait up to `grace_s` for answers in progress, then close all connections."""


class NoPeersTransport:
    """Transport of a world with a single rank; every request fails."""

    data_port = None

    def use_session(self, peer: int, session: bytes) -> None: ...

    def use_data_port(self, peer: int, port: int, request: bytes) -> None: ...

    def serve(self, service: TransportService) -> None: ...

    def close(self, grace_s: float) -> None: ...

    def ask(self, peer: int, method: str, request: bytes, timeout_s: float, patient: bool = False) -> "Future[bytes]":
        raise StreamBroken(StreamEnd.CLOSED, f"the world has only one rank, so rank {peer} does not exist")

    def pull(self, peer: int, request: bytes, timeout_s: float) -> FrameStream:
        raise StreamBroken(StreamEnd.CLOSED, f"the world has only one rank, so rank {peer} does not exist")


class TransportStatus:
    """gRPC status codes that the transport sends or understands."""

    OK: Final = 0
    UNKNOWN: Final = 2
    DEADLINE_EXCEEDED: Final = 4
    FAILED_PRECONDITION: Final = 9
    UNIMPLEMENTED: Final = 12
    INTERNAL: Final = 13
    UNAVAILABLE: Final = 14


def status_of(error: PullRefused | StreamBroken) -> tuple[int, str]:
    """Return the gRPC status code and message by which a service's error is sent to the caller."""
    if isinstance(error, PullRefused):
        return TransportStatus.FAILED_PRECONDITION, error.failure.encode()
    return TransportStatus.UNAVAILABLE, str(error)


def transport_error_of(code: int, message: str) -> PullRefused | StreamBroken:
    """Return the error that a received gRPC status other than OK stands for; the inverse of `status_of`."""
    if code == TransportStatus.FAILED_PRECONDITION:
        return PullRefused(WorldFailure.decode(message))
    if code == TransportStatus.UNKNOWN:  # the peer's handler raised: a defect, and the peer has printed it
        return PullRefused(WorldFailure("internal", f"a peer failed to answer: {message}"))
    if code == TransportStatus.DEADLINE_EXCEEDED:
        return StreamBroken(StreamEnd.TIMEOUT, "nothing within the deadline")
    return StreamBroken(StreamEnd.CLOSED, message)
