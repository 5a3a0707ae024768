"""Detection of connections between ranks in the kernel's tables."""

import socket
from pathlib import Path

import pytest

from ringtrain_job.agent.contact import WorldContact
from ringtrain_job.control.model import World


def _world(ring: int, master: int) -> World:
    return World(1, (f"127.0.0.1:{ring}", "h1:1"), ("h0:2", "h1:3"), "127.0.0.1", master)


def _contact(port: int, kind: str, **options: Path) -> WorldContact:
    return WorldContact(_world(port, 4) if kind == "ring" else _world(5, port), **options)


@pytest.mark.parametrize("kind", ["ring", "master"])
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_an_address_that_is_used_is_found_also_afterwards(kind: str, host: str) -> None:
    """An address counts as soon as it has a listener, and still after the connection has ended."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as server:
        server.bind((host, 0))
        port = server.getsockname()[1]
        early = _contact(port, kind)
        assert not early.check()
        server.listen()
        assert early.check()
        late = _contact(port, kind)
        assert not late.check()  # it is there, and may be somebody else's
        with socket.create_connection((host, port)) as client, server.accept()[0] as accepted:
            accepted.close()
            assert client.recv(1) == b""
    assert late.check()
    assert not _contact(port, kind).check()


@pytest.mark.parametrize("table", ["none", "unreadable"])
def test_where_the_kernel_tells_nothing_nothing_is_said(table: str, tmp_path: Path) -> None:
    """A sandbox may have no such table, or forbid to read it."""
    if table == "unreadable":
        (tmp_path / "tcp").mkdir()  # whoever may read everything can't read this
    assert _contact(1, "ring", tables=tmp_path).check()


def test_a_port_that_is_not_known_is_none() -> None:
    """A listening socket is in the kernel's table with port 0, which must not count as a connection."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        assert not WorldContact(World(1, ("127.0.0.1:1",), ("127.0.0.1:2",), "127.0.0.1", 0)).check()
