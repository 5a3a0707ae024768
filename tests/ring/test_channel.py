"""What the data path asks of the kernel for its sockets."""

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from ringtrain.transport.http2.channel import Channel

pytestmark = pytest.mark.skipif(not hasattr(socket, "TCP_CONGESTION"), reason="these are options of Linux")


@contextmanager
def _connected(client_host: str) -> Iterator[socket.socket]:
    """A connection from `client_host` to 127.0.0.1."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname(), source_address=(client_host, 0))
        with client, server.accept()[0]:
            yield client


def _congestion(sock: socket.socket) -> str:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()


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
        with closing(Channel(sock, 60)):
            assert _congestion(sock) == expected
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == 128 << 10


def test_without_a_link_nothing_is_asked() -> None:
    """A peer at the own address: the kernel's defaults stay."""
    with _connected("127.0.0.1") as sock:
        before = _congestion(sock), sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)
        with closing(Channel(sock, 60)):
            after = _congestion(sock), sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)
            assert after == before
