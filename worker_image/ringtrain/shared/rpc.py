"""Channels and servers for control messages: TLS with the job's certificates, else loopback; always with the token."""

import hmac
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NoReturn

import grpc
from google.protobuf.message_factory import GetMessageClass

from ringtrain.shared.address import host_port, loopback_address
from ringtrain.shared.ports import PortTaken
from ringtrain.shared.secrets import Secrets, dns_name
from ringtrain.shared.tls import caller_problem
from ringtrain.shared.unauthenticated import RateLimitedWarnings

log = logging.getLogger(__name__)

TOKEN_KEY = "ringtrain-token"
NO_TOKEN = "the job's token is missing or wrong"
# A batch of lines is at most 1 MiB (agent/shipper.py), and one rank's read may exceed it by a record.
MAX_MESSAGE = 16 << 20
_COMMON = (
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
_CLIENT = (
    *_COMMON,
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # The launcher's name may appear in DNS after its workers have started: resolve every second, not every 30.
    ("grpc.dns_min_time_between_resolutions_ms", 1000),
)
# Cost of a client's connection for its server: a handshake and a first call, with half a core; bench/scale/README.md.
_EACH_CLIENT_S = 0.004
_LONGEST_CROWD_S = 60.0
# With certificates, clients are authenticated while they connect.
_CONNECT_S = 1.0
_HANDSHAKE_S = 10.0
_KEEPALIVE_S = 10.0
# Concurrent connections in addition to those of the gang.
_MOST_UNAUTHENTICATED = 256
_SERVER = (
    *_COMMON,
    ("grpc.http2.min_ping_interval_without_data_ms", 5000),
)


@dataclass(frozen=True)
class RpcPeer:
    """Identity that the other end's certificate must prove: a `role`, in the job with UID `uid`."""

    role: str
    uid: str


def dial(address: str, secrets: Secrets, peer: RpcPeer, clients: int = 1) -> grpc.Channel:
    """Return a channel to `address` that sends the token and accepts only a server with the identity `peer`.

    `clients`: how many may dial that server at the same time.
    """
    options = channel_options(peer, clients)
    if secrets.tls is None:
        channel = grpc.insecure_channel(address, options=options)
    else:
        channel = grpc.secure_channel(address, secrets.tls.for_channel(), options=options)
    return grpc.intercept_channel(channel, _RpcTokenInterceptor(secrets.token)) if secrets.token else channel


def handshake_time_s(clients: int) -> float:
    """Return how long a server may need for the TLS handshakes of `clients` that connect at the same time.

    The server serves them concurrently, so each may take as long as all together. A client that gives up earlier dials
    again, and costs the server the same time once more.
    """
    return min(clients * _EACH_CLIENT_S, _LONGEST_CROWD_S)


def channel_options(peer: RpcPeer, clients: int) -> tuple[tuple[str, Any], ...]:
    """Return the gRPC options of a channel to `peer`, to which `clients` may connect at the same time."""
    return (
        *_CLIENT,
        *_keepalive(clients),
        # The name suggests the time between two attempts, but gRPC uses it as the limit of one attempt.
        ("grpc.min_reconnect_backoff_ms", round(1000 * max(_CONNECT_S, handshake_time_s(clients)))),
        # Names in the certificate contain role and uid; the server's DNS name proves nothing.
        ("grpc.ssl_target_name_override", dns_name(peer.role, peer.uid)),
    )


def _keepalive(clients: int) -> tuple[tuple[str, int], ...]:
    """Return gRPC keepalive options that allow for a server with many clients, which answers pings late."""
    patience_ms = round(1000 * max(_KEEPALIVE_S, handshake_time_s(clients)))
    return (("grpc.keepalive_time_ms", patience_ms), ("grpc.keepalive_timeout_ms", patience_ms))


def stub_of(channel: grpc.Channel, service: Any) -> Any:
    """Return an object with the methods of the protobuf service with the descriptor `service`, called on `channel`."""
    return SimpleNamespace(
        **{
            method.name: getattr(channel, _method_kind(method))(
                f"/{service.full_name}/{method.name}",
                request_serializer=GetMessageClass(method.input_type).SerializeToString,
                response_deserializer=GetMessageClass(method.output_type).FromString,
            )
            for method in service.methods
        }
    )


def method_handlers(service: Any, servicer: Any) -> dict[str, grpc.RpcMethodHandler]:
    """Return gRPC's handlers for the methods of the protobuf service `service`, by name. `servicer`: an object with
    these methods."""
    return {
        method.name: getattr(grpc, f"{_method_kind(method)}_rpc_method_handler")(
            getattr(servicer, method.name),
            request_deserializer=GetMessageClass(method.input_type).FromString,
            response_serializer=GetMessageClass(method.output_type).SerializeToString,
        )
        for method in service.methods
    }


def add_service(server: grpc.Server, service: Any, servicer: Any) -> None:
    """Add the protobuf service `service` to `server`. `servicer`: an object with its methods."""
    handlers = method_handlers(service, servicer)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))


def _method_kind(method: Any) -> str:
    """Return gRPC's name for how a method's requests and replies are sent, such as `unary_stream`."""
    return "_".join("stream" if streams else "unary" for streams in (method.client_streaming, method.server_streaming))


@dataclass(frozen=True)
class ControlServer:
    """Server that listens on `port`."""

    port: int
    _server: grpc.Server
    _pool: ThreadPoolExecutor

    def close(self, grace_s: float) -> None:
        """Stop listening, wait up to `grace_s` for calls in progress, and end the threads."""
        self._server.stop(grace_s).wait(grace_s + 1.0)
        self._pool.shutdown(wait=False)


def serve(
    port: int,
    secrets: Secrets,
    peer: RpcPeer,
    *,
    threads: int,
    register: Callable[[grpc.Server], None],
) -> ControlServer:
    """Start and return a server on `port` that accepts only clients with the identity `peer`.

    Without certificates it listens on loopback only. `threads`: number of calls that run at the same time. `register`:
    adds the services to the server. Raises PortTaken if the port is in use.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix="ringtrain-rpc")
    check = _RpcPeerInterceptor(RpcPeerCheck(secrets, peer, {}))
    server = grpc.server(pool, options=server_options(threads, False), interceptors=[check])
    register(server)
    bound = bind(server, port, secrets)
    server.start()
    return ControlServer(bound, server, pool)


def server_options(clients: int, is_held: bool) -> tuple[tuple[str, int], ...]:
    """Return the gRPC options of a server for `clients` clients. `is_held`: whether another process has bound the
    port."""
    return (
        *_SERVER,
        *_keepalive(clients),
        ("grpc.server_handshake_timeout_ms", round(1000 * max(_HANDSHAKE_S, handshake_time_s(clients)))),
        ("grpc.so_reuseport", int(is_held)),
        ("grpc.max_allowed_incoming_connections", _MOST_UNAUTHENTICATED + 2 * clients),
    )


def bind(server: Any, port: int, secrets: Secrets) -> int:
    """Make `server` listen on `port` (0: any) and return the port; on loopback only if there are no certificates.

    Raises PortTaken.
    """
    try:
        if secrets.tls is None:
            return int(server.add_insecure_port(host_port(loopback_address(), port)))
        credentials = secrets.tls.for_server()
        try:
            return int(server.add_secure_port(f"[::]:{port}", credentials))
        except RuntimeError:  # IPv6 is not available
            return int(server.add_secure_port(f"0.0.0.0:{port}", credentials))
    except RuntimeError as exc:
        raise PortTaken(f"cannot listen on port {port}: is another process using it? ({exc})") from exc


class _RpcTokenInterceptor(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[misc]
    grpc.UnaryStreamClientInterceptor,  # type: ignore[misc]
    grpc.StreamStreamClientInterceptor,  # type: ignore[misc]
):
    """Client interceptor that adds the job's token to every call."""

    def __init__(self, token: str) -> None:
        self._token = token

    def _intercept(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        metadata = [*(client_call_details.metadata or ()), (TOKEN_KEY, self._token)]
        return continuation(client_call_details._replace(metadata=metadata), request)

    intercept_unary_unary = intercept_unary_stream = intercept_stream_stream = _intercept


class RpcPeerCheck:
    """Check of incoming calls for the job's token and for a certificate of the right role and job.

    `others`: for services with other clients than `peer`, the clients' identity by the service's full name.
    """

    def __init__(self, secrets: Secrets, peer: RpcPeer, others: Mapping[str, RpcPeer]) -> None:
        self._secrets = secrets
        self._peer = peer
        self._others = others
        self._complaints = RateLimitedWarnings(log.warning)

    def knows_token(self, metadata: Any) -> bool:
        """Return whether a call's metadata contains the job's token, or no token is required."""
        token = dict(metadata).get(TOKEN_KEY, "")
        given = token if isinstance(token, bytes) else token.encode()
        return not self._secrets.token or hmac.compare_digest(given, self._secrets.token.encode())

    def peer_of(self, method: str) -> RpcPeer:
        """Return the identity that callers of `method` must have."""
        return self._others.get(method.split("/")[1], self._peer)

    def problem(self, context: Any, peer: RpcPeer) -> str:
        """Return why the caller's certificate is not that of `peer`; empty if it is, or without TLS."""
        expected = dns_name(peer.role, peer.uid)
        return "" if self._secrets.tls is None else caller_problem(context, expected)

    def complain(self, context: Any, problem: str) -> None:
        """Log that a call is refused."""
        self._complaints.say(f"refused a call from {context.peer()}: {problem}")


class _RpcPeerInterceptor(grpc.ServerInterceptor):  # type: ignore[misc]
    """Server interceptor that refuses and logs calls without the job's token or with a wrong certificate."""

    def __init__(self, check: RpcPeerCheck) -> None:
        self._check = check

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        if not self._check.knows_token(handler_call_details.invocation_metadata):
            # A handler with streamed requests runs before any request is read.
            refuse = self._refuse(NO_TOKEN)
            if handler.response_streaming:
                return grpc.stream_stream_rpc_method_handler(refuse)
            return grpc.stream_unary_rpc_method_handler(refuse)
        kind = next(name for name in ("unary_unary", "unary_stream", "stream_stream") if getattr(handler, name))
        peer = self._check.peer_of(handler_call_details.method)
        return handler._replace(**{kind: self._guard(getattr(handler, kind), peer)})

    def _guard(self, behaviour: Any, peer: RpcPeer) -> Any:
        def guarded(request: Any, context: Any) -> Any:
            problem = self._check.problem(context, peer)
            if problem:
                self._refuse(problem)(request, context)
            return behaviour(request, context)

        return guarded

    def _refuse(self, problem: str) -> Callable[[Any, Any], NoReturn]:
        def refuse(_: Any, context: Any) -> NoReturn:
            self._check.complain(context, problem)
            context.abort(grpc.StatusCode.PERMISSION_DENIED, problem)
            raise AssertionError("abort() raises")

        return refuse
