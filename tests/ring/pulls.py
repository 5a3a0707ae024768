"""Both ends of the data path, of ours and of gRPC's own library, and a service to pull from."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from support.deadlines import patient

from ringtrain._core.transport.base import StreamBroken, StreamEnd, TransportCaller
from ringtrain._core.transport.channel import SocketChannel
from ringtrain._core.transport.connection import Http2Connection
from ringtrain._core.transport.data_path import SocketFrameStream
from ringtrain._core.transport.data_server import TransportDataServer
from ringtrain._core.transport.frames import MAX_WINDOW
from ringtrain._core.transport.rpc import RpcTransportHandlers
from ringtrain._core.wire.failure import NotAPeer, PullRefused, WorldFailure
from ringtrain._core.wire.messages import HEADER_BYTES, WireFrame
from ringtrain.shared.unauthenticated import UnauthenticatedPeers

DEADLINE_S = patient(60.0)
METHOD = "/ringtrain.Ring/Pull"


def head(index: int) -> bytes:
    return index.to_bytes(HEADER_BYTES, "big")


def payload(length: int, index: int) -> bytes:
    """Bytes that no other frame has."""
    return (bytes(range(251)) * (length // 251 + 2))[index % 251 :][:length]


def asking(*sizes: int, **more: Any) -> bytes:
    """A request for frames of these sizes. `more`: `refuse`, `leave`, `fail` with a message; `wait` for ever."""
    return json.dumps({"sizes": sizes} | more).encode()


class Sizes:
    """Answers what `asking` asks for."""

    def __init__(self) -> None:
        self.given_up = threading.Event()
        self.waiting = threading.Event()

    def is_peer(self, rank: int, session: bytes) -> bool:
        return True

    def answer(self, method: str, request: bytes, caller: TransportCaller) -> bytes:
        raise AssertionError("not asked for here")

    def pull(self, request: bytes, caller: TransportCaller) -> Iterator[WireFrame]:
        try:
            asked = json.loads(request)
        except ValueError as error:
            raise NotAPeer(WorldFailure("configuration", "no session")) from error
        caller.on_end(self.given_up.set)
        for index, size in enumerate(asked["sizes"]):
            yield WireFrame(head(index), memoryview(payload(size, index)))
        if "refuse" in asked:
            raise PullRefused(WorldFailure("mismatch", asked["refuse"]))
        if "leave" in asked:
            raise StreamBroken(StreamEnd.CLOSED, asked["leave"])
        if "fail" in asked:
            raise ValueError(asked["fail"])
        if "wait" in asked:
            self._wait(caller)

    def _wait(self, caller: TransportCaller) -> None:
        caller.flush()
        self.waiting.set()
        never = threading.Event()
        while caller.is_active():
            never.wait(0.01)
        self.given_up.set()


@contextlib.contextmanager
def our_server(service: Any) -> Iterator[int]:
    server = TransportDataServer("127.0.0.1", service, DEADLINE_S)
    try:
        yield server.port
    finally:
        server.close(1.0)


@contextlib.contextmanager
def their_server(service: Any) -> Iterator[int]:
    with ThreadPoolExecutor(4) as pool:
        pull = grpc.unary_stream_rpc_method_handler(RpcTransportHandlers(service, UnauthenticatedPeers()).pull)
        handlers = [grpc.method_handlers_generic_handler("ringtrain.Ring", {"Pull": pull})]
        server = grpc.server(pool, handlers=handlers, options=[("grpc.max_send_message_length", -1)])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield port
        finally:
            server.stop(None).wait()


@contextlib.contextmanager
def our_client(port: int, window: int = MAX_WINDOW) -> Iterator[Callable[..., SocketFrameStream]]:
    """Opens calls on one connection, one after the other."""
    connection = Http2Connection(SocketChannel(socket.create_connection(("127.0.0.1", port)), DEADLINE_S), True, window)

    def pull(request: bytes, timeout_s: float = DEADLINE_S) -> SocketFrameStream:
        stream = SocketFrameStream(connection, lambda _: None)
        stream.ask(request, f"127.0.0.1:{port}", timeout_s)
        return stream

    try:
        yield pull
    finally:
        connection.channel.close()


@contextlib.contextmanager
def their_client(port: int, **options: int) -> Iterator[Any]:
    """gRPC's own stub of Pull. `options`: of its channel, with `_` for `.` after "grpc"."""
    named = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1), *options.items()]
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=named) as channel:
        yield channel.unary_stream(METHOD)


def read(stream: SocketFrameStream, sizes: list[int]) -> list[bytes]:
    """The payloads of all frames, up to the end."""
    read = []
    for index, size in enumerate(sizes):
        target = bytearray(size)
        stream.read_into(head(index), memoryview(target))
        read.append(bytes(target))
    stream.end()
    return read
