"""The socket between an agent and its ranks."""

import json
import os
import queue
import socket
import stat
from collections.abc import Iterator
from typing import Any

import pytest
from support.deadlines import patient

from ringtrain.errors import ConfigurationError
from ringtrain_job.agent.elastic.messages import (
    Committed,
    FromRank,
    Joined,
    Ready,
    parse_slot_message,
    slot_change_message,
)
from ringtrain_job.agent.elastic.sockets import ElasticRankSockets
from ringtrain_job.control.model import Member

CALLER = Member(3, 1)
DEADLINE_S = patient(30.0)


class Server:
    """Sockets, and a queue of the ranks' messages and actions on them."""

    def __init__(self) -> None:
        self.heard: queue.SimpleQueue[tuple[Member, bool | FromRank]] = queue.SimpleQueue()
        both = [lambda caller, what: self.heard.put((caller, what))] * 2
        self.sockets = ElasticRankSockets(*both)

    def next(self) -> tuple[Member, bool | FromRank]:
        return self.heard.get(timeout=DEADLINE_S)

    def connect(self, path: Any) -> socket.socket:
        opened = socket.socket(socket.AF_UNIX)
        opened.settimeout(DEADLINE_S)
        opened.connect(str(path))
        return opened


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.sockets.close()


def line(connection: socket.socket) -> Any:
    """The next message on `connection`; None when it was closed."""
    with connection.makefile("rb") as file:
        text = file.readline()
    return json.loads(text) if text else None


def test_both_ways(server: Server) -> None:
    """Messages arrive with the slot and life whose socket it is, in the order in which they were sent."""
    path = server.sockets.open(CALLER)
    other = server.sockets.open(Member(4, 2))
    with server.connect(path) as rank, server.connect(other):
        assert {server.next(), server.next()} == {(CALLER, True), (Member(4, 2), True)}
        rank.sendall(
            b'{"type": "ready", "formation": 2, "committed": 7, "lost_steps": 1, "adopted": 1, "more": []}\n{"type":'
        )
        rank.sendall(b' "joined", "formation": 3}\n{"type": "committed", "step": 9}\n')
        said = [server.next() for _ in range(3)]
        assert said == [(CALLER, Ready(2, 7, 1, adopted=1)), (CALLER, Joined(3)), (CALLER, Committed(9))]
        server.sockets.send(CALLER, slot_change_message(4, urgent=True))
        assert line(rank) == {"type": "change", "formation": 4, "urgent": True, "leaving": []}


def test_nobody_else_reaches_it(server: Server) -> None:
    """Only this user can access directory and sockets; the files are removed when a process has ended."""
    path = server.sockets.open(CALLER)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with server.connect(path) as rank:
        assert server.next() == (CALLER, True)
        server.sockets.forget(CALLER)
        assert line(rank) is None
    assert not path.exists()
    server.sockets.close()
    assert not path.parent.exists()


def test_a_long_temporary_directory(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path that is too long for a socket is not used."""
    long = tmp_path / ("d" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    server = Server()
    server.connect(server.sockets.open(CALLER)).close()
    server.sockets.close()
    assert os.listdir(long) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"hello", "'hello' is not JSON; expected one object per line"),
        (b"[" * 5000, "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"", "'' is not JSON"),
        (b"[1]", "'[1]' is not a JSON object"),
        (b'{"formation": 1}', "the message's type is 'None'; expected ready, joined or committed"),
        (b'{"type": "world"}', "the message's type is 'world'; expected ready, joined or committed"),
        (b'{"type": ["ready"]}', "expected ready, joined or committed"),
        (b'{"type": "joined"}', "formation of joined is absent: expected an integer from 0 to 999999"),
        (b'{"type": "joined", "formation": "2"}', "formation of joined is '2'"),
        (b'{"type": "joined", "formation": true}', "formation of joined is 'True'"),
        (b'{"type": "joined", "formation": 1.5}', "formation of joined is '1.5'"),
        (b'{"type": "joined", "formation": -1}', "formation of joined is '-1'"),
        (b'{"type": "committed", "step": 1e400}', "step of committed is 'inf'"),
        (
            b'{"type": "committed", "step": 9223372036854775808}',
            "expected an integer from 0 to 9223372036854775807",
        ),
        (b'{"type": "ready", "formation": 1, "committed": 2}', "lost_steps of ready is absent"),
        (
            b'{"type": "ready", "formation": 1, "committed": 2, "lost_steps": 0, "adopted": null}',
            "adopted of ready is 'None'",
        ),
    ],
    ids=[
        *("no-json", "deep", "no-text", "empty", "no-object", "no-type", "unknown-type", "type-is-a-list"),
        *("no-number", "text", "bool", "fraction", "negative", "infinite", "too-large", "incomplete", "optional"),
    ],
)
def test_what_is_no_message(text: bytes, problem: str) -> None:
    """The error names the field, its value, and the expected one."""
    with pytest.raises(ConfigurationError) as error:
        parse_slot_message(text)
    assert problem in str(error.value)


def test_a_rank_is_told_what_is_wrong(server: Server) -> None:
    """The rank gets an answer to an invalid line, and the next valid line is accepted."""
    with server.connect(server.sockets.open(CALLER)) as rank:
        rank.sendall(b'nonsense\n{"type": "joined", "formation": 3}\n')
        assert [server.next(), server.next()] == [(CALLER, True), (CALLER, Joined(3))]
        assert line(rank) == {"type": "error", "message": "'nonsense' is not JSON; expected one object per line"}


def test_a_line_without_an_end(server: Server) -> None:
    """The connection is closed before the line fills the agent's memory; the rank may connect again."""
    path = server.sockets.open(CALLER)
    with server.connect(path) as rank:
        assert server.next() == (CALLER, True)
        with pytest.raises(ConnectionError):
            rank.sendall(b"x" * (64 << 20))
        assert server.next() == (CALLER, False)
    with server.connect(path):
        assert server.next() == (CALLER, True)


@pytest.mark.slow
def test_bad_lines_without_end(server: Server) -> None:
    """A rank that does not read the answers to its bad lines gets no more of them, and is still heard."""
    with server.connect(server.sockets.open(CALLER)) as rank:
        assert server.next() == (CALLER, True)
        for _ in range(100):
            rank.sendall(b"x\n" * 1000)
        rank.sendall(b'{"type": "joined", "formation": 3}\n')
        assert server.next() == (CALLER, Joined(3))


def test_one_connection_at_a_time(server: Server) -> None:
    """A second connection, for example of a data loader's forked worker, is refused; after the first is closed, another
    one is accepted."""
    path = server.sockets.open(CALLER)
    with server.connect(path) as rank:
        assert server.next() == (CALLER, True)
        with server.connect(path) as second:
            answer = line(second)
            assert answer["type"] == "error"
            assert answer["message"].startswith("slot 3 has a connection to its agent already")
        rank.sendall(b'{"type": "joined", "formation": 3}\n')
        assert server.next() == (CALLER, Joined(3))
    with server.connect(path) as rank:
        assert [server.next(), server.next()] == [(CALLER, False), (CALLER, True)]


def test_a_rank_that_does_not_read(server: Server) -> None:
    """A stopped process delays no other; it gets all messages when it continues."""
    world = {"type": "world", "formation": 1, "environment": {"A": "x" * 1_000_000}}
    with (
        server.connect(server.sockets.open(CALLER)) as stopped,
        server.connect(server.sockets.open(Member(4, 1))) as other,
    ):
        assert {server.next(), server.next()} == {(CALLER, True), (Member(4, 1), True)}
        server.sockets.send(CALLER, world)
        server.sockets.send(CALLER, slot_change_message(2, urgent=True))
        server.sockets.send(Member(4, 1), slot_change_message(2, urgent=False))
        assert line(other) == {"type": "change", "formation": 2, "urgent": False, "leaving": []}
        with stopped.makefile("rb") as file:
            assert [json.loads(file.readline())["type"] for _ in range(2)] == ["world", "change"]
