"""The data path's sockets: what it asks of the kernel for them, and bytes that are taken only if expected."""

import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from ringtrain._core.transport.channel import SocketChannel
from ringtrain.shared.connection_errors import DeadlinePassed

_of_linux = pytest.mark.skipif(not hasattr(socket, "TCP_CONGESTION"), reason="these are options of Linux")


@contextmanager
def _connected(client_host: str) -> Iterator[socket.socket]:
    """A connection from `client_host` to 127.0.0.1."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname(), source_address=(client_host, 0))
        with client, server.accept()[0]:
            yield client


def _congestion(sock: socket.socket) -> str:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()


@_of_linux
@pytest.mark.parametrize(
    ("asked", "expected"), [("bbr", "cubic"), ("reno", "reno"), ("cubic", "cubic")], ids=["bbr", "reno", "cubic"]
)
def test_a_link_is_shared_evenly(asked: str, expected: str) -> None:
    """To another address little waits unsent, and BBR gives way; what else an administrator chose stays."""
    with _connected("127.0.0.2") as sock:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, asked.encode())
        except OSError:
            pytest.skip(f"this system has no {asked}")
        with closing(SocketChannel(sock, 60)):
            assert _congestion(sock) == expected
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == 128 << 10


@_of_linux
def test_without_a_link_nothing_is_asked() -> None:
    """A peer at the own address: the kernel's defaults stay."""
    with _connected("127.0.0.1") as sock:
        before = _congestion(sock), sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)
        with closing(SocketChannel(sock, 60)):
            after = _congestion(sock), sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)
            assert after == before


@pytest.mark.parametrize(
    ("sent", "expected"),
    [(b"headfront", True), (b"head", None), (b"tail", False), (b"headfrown", False), (b"headfrontmore", True)],
    ids=["all", "only-the-first", "other", "other-end", "more-behind"],
)
def test_bytes_are_taken_only_if_they_are_expected(sent: bytes, expected: bool | None) -> None:
    """Other bytes stay unread, and their first ones suffice to tell. `expected` None: the rest is awaited."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one, other = socket.create_connection(server.getsockname()), server.accept()[0]
    with one, closing(SocketChannel(other, 60)) as channel:
        one.sendall(sent)
        channel.deadline = time.monotonic() + (0.2 if expected is None else 10.0)
        if expected is None:
            with pytest.raises(DeadlinePassed):
                channel.take_if(b"headfront", 4)
        else:
            assert channel.take_if(b"headfront", 4) is expected
        left = sent.removeprefix(b"headfront") if expected else sent
        assert bytes(channel.take(len(left))) == left
