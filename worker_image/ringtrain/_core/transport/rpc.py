"""Transport between ranks by gRPC; frames use the faster data ports where possible.

Frames and control messages are raw bytes on generic handlers: tensors are not wrapped in protobuf.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Final, NoReturn

import grpc

from ringtrain._core.transport.base import (
    FrameStream,
    PeerUnreached,
    StreamBroken,
    StreamEnd,
    TransportService,
    UnexpectedFrame,
    status_of,
    transport_error_of,
)
from ringtrain._core.transport.data_path import TransportDataPath
from ringtrain._core.transport.rpc_options import MORE_CALLS, MOST_CALLS, grpc_channel_options, server_options
from ringtrain._core.transport.threads import TransportThreadPool
from ringtrain._core.wire.failure import NotAPeer, PullRefused, WorldFailure
from ringtrain._core.wire.messages import METHODS, split_frame
from ringtrain.errors import ConfigurationError
from ringtrain.shared.address import listening_address
from ringtrain.shared.tls import TlsIdentity, caller_problem
from ringtrain.shared.unauthenticated import UnauthenticatedPeers

_SERVICE: Final = "ringtrain.Ring"
_PULL: Final = "Pull"
_SESSION_KEY: Final = "ringtrain-session"
# Metadata that confirms the arrival of a request before its answer.
_ARRIVED: Final = (("ringtrain-arrived", "1"),)


class RpcCaller:
    """Peer whose gRPC request this rank is serving."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def remaining_s(self) -> float:
        return float(self._context.time_remaining())

    def is_active(self) -> bool:
        return bool(self._context.is_active())

    def flush(self) -> None:
        """Do nothing: gRPC sends every message at once."""

    def on_end(self, callback: Callable[[], None]) -> None:
        if not self._context.add_callback(callback):
            callback()


class RpcStream:
    """Frames of one Pull request over gRPC."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def read_into(self, head: bytes, target: memoryview) -> None:
        data = self._next()
        if data is None:
            raise UnexpectedFrame("the stream ended too early")
        if difference := split_frame(data).move_into(head, target):
            raise UnexpectedFrame(difference)

    def end(self) -> None:
        if self._next() is not None:
            raise UnexpectedFrame("the peer sent more data than expected")

    def _next(self) -> bytes | None:
        """Return the next message of the stream, or None at its end."""
        try:
            return next(self._call, None)
        except grpc.RpcError as error:
            raise _our_transport_error(error) from error

    def cancel(self) -> None:
        self._call.cancel()

    def close(self) -> None:
        self._call.cancel()


class RpcTransport:
    """gRPC server of one rank and its channels to all other ranks. `addresses`: `host:port` by rank.

    `data_path`: whether frames use the peers' data ports if they can be reached; other frames use gRPC. `tls`: identity
    with which everything is encrypted, and only ranks of the job are admitted. `in_clear`: peers with which frames are
    sent unencrypted on the data port nevertheless.
    """

    def __init__(
        self,
        rank: int,
        addresses: Sequence[str],
        timeout_s: float,
        data_path: bool = True,
        tls: TlsIdentity | None = None,
        in_clear: Collection[int] = (),
    ) -> None:
        self._tls = tls
        self._rank = rank
        self._addresses = addresses
        self._timeout_s = timeout_s
        self._pool = TransportThreadPool("ringtrain-serve")
        self._server: Any = None
        self._lock = threading.Lock()  # protects the channels: threads of gRPC create some, too, while this rank leaves
        self._closed = False
        self._channels: dict[int, Any] = {}
        self._methods: dict[tuple[int, str], Any] = {}
        self._data = TransportDataPath(rank, addresses, timeout_s, tls, in_clear) if data_path else None
        self._data_port: int | None = None
        self._unauthenticated = UnauthenticatedPeers(MOST_CALLS + MORE_CALLS * (len(addresses) // 16).bit_length())
        self._sessions: dict[int, tuple[tuple[str, str]]] = {}

    @property
    def data_port(self) -> int | None:
        return self._data_port

    def use_session(self, peer: int, session: bytes) -> None:
        self._sessions[peer] = ((_SESSION_KEY, f"{self._rank}-{session.hex()}"),)

    def use_data_port(self, peer: int, port: int, request: bytes) -> None:
        if self._data is not None:
            self._data.dial(peer, port, request)

    def serve(self, service: TransportService) -> None:
        options = server_options(self._timeout_s, len(self._addresses))
        self._server = grpc.server(
            self._pool, handlers=[RpcTransportHandlers(service, self._unauthenticated, self._tls)], options=options
        )
        address = self._addresses[self._rank]
        try:
            if self._tls is None:
                self._server.add_insecure_port(listening_address(address))
            else:
                self._server.add_secure_port(listening_address(address), self._tls.certificates.for_server())
        except RuntimeError as error:
            raise ConfigurationError(
                f"rank {self._rank} can't listen on {address}: another process, or a second task with "
                f"index {self._rank}, listens on this address"
            ) from error
        if self._data is not None:
            self._data_port = self._data.serve(service)
        self._server.start()

    def ask(self, peer: int, method: str, request: bytes, timeout_s: float, patient: bool = False) -> "Future[bytes]":
        answer: Future[bytes] = Future()

        def done(call: Any) -> None:
            error = (
                StreamBroken(StreamEnd.CANCELLED, "this rank cancelled the call")
                if call.cancelled()
                else call.exception()
            )
            if error is None:
                answer.set_result(call.result())
            else:
                answer.set_exception(_rpc_question_error(call, error) if isinstance(error, grpc.RpcError) else error)

        shown = self._sessions.get(peer)
        try:
            call = self._method(peer, method).future(request, timeout=timeout_s, wait_for_ready=patient, metadata=shown)
        except ValueError:  # raised by gRPC for a closed channel
            if not self._closed:
                raise
            answer.set_exception(StreamBroken(StreamEnd.CANCELLED, "this rank has shut down"))
            return answer
        call.add_done_callback(done)
        return answer

    def pull(self, peer: int, request: bytes, timeout_s: float) -> FrameStream:
        stream = self._data.pull(peer, request, timeout_s) if self._data is not None else None
        if stream is not None:
            return stream
        shown = self._sessions.get(peer)
        try:
            return RpcStream(self._method(peer, _PULL)(request, timeout=timeout_s, metadata=shown))
        except ValueError as error:
            if not self._closed:
                raise
            raise StreamBroken(StreamEnd.CANCELLED, "this rank has shut down") from error

    def close(self, grace_s: float) -> None:
        stopped = self._server.stop(grace_s) if self._server is not None else None
        if self._data is not None:
            self._data.close(grace_s)
        if stopped is not None:
            stopped.wait()
        with self._lock:
            self._closed = True
            channels = list(self._channels.values())
        for channel in channels:
            channel.close()
        self._unauthenticated.close()
        self._pool.shutdown()

    def _open_channel(self, address: str) -> Any:
        options = grpc_channel_options(self._timeout_s)
        if self._tls is None:
            return grpc.insecure_channel(address, options=options)
        named = [*options, ("grpc.ssl_target_name_override", self._tls.name)]
        return grpc.secure_channel(address, self._tls.certificates.for_channel(), options=named)

    def _method(self, peer: int, method: str) -> Any:
        """Return the gRPC callable for `method` of rank `peer`, with a channel that is opened on first use.

        Raises ValueError, like a closed channel, after this rank has shut down.
        """
        made = self._methods.get((peer, method))
        if made is not None:
            return made
        with self._lock:
            if self._closed:
                raise ValueError("this rank has shut down")
            channel = self._channels.get(peer)
            if channel is None:
                channel = self._channels[peer] = self._open_channel(self._addresses[peer])
        make = channel.unary_stream if method == _PULL else channel.unary_unary
        made = self._methods[peer, method] = make(f"/{_SERVICE}/{method}")
        return made


class RpcTransportHandlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """gRPC handlers of a rank, chosen by whether the caller has a valid session.

    A caller whose metadata has a valid session is a peer. Any other caller is unauthenticated: only a few are served at
    a time, each for some seconds. The thread that answers such a caller also reads its message, so that no thread or
    message remains afterwards.
    """

    def __init__(
        self, service: TransportService, unauthenticated: UnauthenticatedPeers, tls: TlsIdentity | None = None
    ) -> None:
        self._service = service
        self._tls = tls
        self._unauthenticated = unauthenticated
        # Twice the limit: calls that are being cancelled need a moment.
        self._calls = threading.BoundedSemaphore(2 * unauthenticated.most)
        self._peer_handlers = {
            method: grpc.unary_unary_rpc_method_handler(self._answering(method)) for method in METHODS
        }
        self._peer_handlers[_PULL] = grpc.unary_stream_rpc_method_handler(self.pull)
        self._unauthenticated_handlers = {
            method: grpc.stream_unary_rpc_method_handler(self._for_unauthenticated(self._answering(method)))
            for method in METHODS
        }
        self._unauthenticated_handlers[_PULL] = grpc.stream_unary_rpc_method_handler(
            self._for_unauthenticated(self._refuse_pull)
        )

    def service(self, handler_call_details: Any) -> Any:
        service, _, method = handler_call_details.method.removeprefix("/").partition("/")
        if service != _SERVICE or method not in self._peer_handlers:
            return None
        shown = dict(handler_call_details.invocation_metadata or ()).get(_SESSION_KEY, "")
        if self._is_peer(shown):
            return self._peer_handlers[method]
        # None: gRPC asks the caller to repeat.
        return self._unauthenticated_handlers[method] if self._calls.acquire(blocking=False) else None

    def _is_peer(self, shown: str | bytes) -> bool:
        rank, _, session = (shown if isinstance(shown, str) else "").partition("-")
        try:
            return self._service.is_peer(int(rank[:10]), bytes.fromhex(session))
        except ValueError:
            return False

    def pull(self, request: bytes, context: Any) -> Iterator[bytes]:
        """Yield the requested frames to an authenticated peer, one gRPC message each."""
        self._check_certificate(context)
        try:
            for frame in self._service.pull(request, RpcCaller(context)):
                yield frame.joined()
        except (PullRefused, StreamBroken) as error:
            _abort_rpc(context, error)

    def _check_certificate(self, context: Any) -> None:
        """Refuse a caller whose certificate is of this job but not of a rank, such as the launcher's."""
        if self._tls is not None and (problem := caller_problem(context, self._tls.name)):
            _abort_rpc(context, NotAPeer(WorldFailure("configuration", problem)))

    def _refuse_pull(self, request: bytes, context: Any) -> bytes:
        return _abort_rpc(context, NotAPeer(WorldFailure("configuration", "a pull without a session")))

    def _answering(self, method: str) -> Callable[[bytes, Any], bytes]:
        def answer(request: bytes, context: Any) -> bytes:
            self._check_certificate(context)
            context.send_initial_metadata(_ARRIVED)
            try:
                return self._service.answer(method, request, RpcCaller(context))
            except (PullRefused, StreamBroken) as error:
                return _abort_rpc(context, error)

        return answer

    def _for_unauthenticated(self, answer: Callable[[bytes, Any], bytes]) -> Callable[[Iterator[bytes], Any], bytes]:
        """Wrap `answer` for unauthenticated callers, so that their number and time are limited."""

        def limited(requests: Iterator[bytes], context: Any) -> bytes:
            unauthenticated = self._unauthenticated.enter(context.cancel)
            try:
                return answer(next(requests, b""), context)
            finally:
                self._unauthenticated.leave(unauthenticated)
                self._calls.release()

        return limited


def _abort_rpc(context: Any, error: PullRefused | StreamBroken) -> NoReturn:
    code, message = status_of(error)
    context.abort(_CODES[code], message)
    raise AssertionError("abort() raises")


def _rpc_question_error(call: Any, error: Any) -> Exception:
    ours = _our_transport_error(error)
    if isinstance(ours, StreamBroken) and ours.how is StreamEnd.CLOSED and not call.initial_metadata():
        return PeerUnreached(ours.detail)
    return ours


def _our_transport_error(error: Any) -> Exception:
    code, detail = error.code(), error.details() or ""
    if code is grpc.StatusCode.CANCELLED and "Locally cancelled" in detail:
        return StreamBroken(StreamEnd.CANCELLED, "this rank cancelled the call")
    if code in _TOO_MANY:
        return StreamBroken(StreamEnd.CLOSED, "it is not a rank, or has too many unauthenticated callers")
    return transport_error_of(code.value[0], detail)


# Status with which `RpcTransportHandlers` cancels or refuses an unauthenticated caller's call.
_TOO_MANY: Final = (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNIMPLEMENTED)
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}
