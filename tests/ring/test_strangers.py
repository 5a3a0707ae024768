"""Limits for peers without a session at a rank's port: bytes, connections, threads, time and log lines."""

import logging
import socket
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from support.deadlines import patient

import ringtrain as rt
from ring.leftovers import leftovers
from ring.worlds import World, world_of
from ringtrain.shared.unauthenticated import RateLimitedWarnings, UnauthenticatedPeers

DEADLINE_S = patient(30.0)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Two ranks that have met."""
    with world_of(2, "grpc") as made:
        yield made
    assert not leftovers()


def _port(world: World) -> int:
    return int(world.contexts[0].config.addresses[0].rpartition(":")[2])


def _assert_works(world: World) -> None:
    assert world.run(lambda rank: float(rt.allreduce(1.0, rt.Sum))) == [2.0, 2.0]


@pytest.mark.parametrize("method", ["Hello", "Prove", "Abort", "Status", "Watch", "Pull"])
def test_a_long_message_is_not_taken(world: World, method: str) -> None:
    """gRPC stops reading at its limit, whatever length a stranger announces."""
    with grpc.insecure_channel(f"127.0.0.1:{_port(world)}") as channel:
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary(f"/ringtrain.Ring/{method}")(bytes(16 << 20), timeout=DEADLINE_S)
        expected = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.FAILED_PRECONDITION)
        assert refused.value.code() in expected  # type: ignore[attr-defined]
    _assert_works(world)


def test_calls_without_a_session_cost_few_threads(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Hundreds of calls whose message never comes: peers go on, few threads are made, and not a line is logged."""
    caplog.set_level(logging.DEBUG)
    _assert_works(world)
    before = threading.active_count()
    stop = threading.Event()

    def nothing() -> Iterator[bytes]:
        stop.wait(DEADLINE_S)
        yield from ()

    channels = [grpc.insecure_channel(f"127.0.0.1:{_port(world)}", [("a", number)]) for number in range(2)]
    try:
        calls: list[Any] = []
        clients = 0
        for number in range(120):
            call = channels[number % 2].stream_unary("/ringtrain.Ring/Hello").future(nothing(), timeout=DEADLINE_S)
            calls.append(call)
            clients += 2  # gRPC's client has a thread for what is sent, and may have one for what comes
        while sum(call.done() for call in calls) < 120 - 32:
            _assert_works(world)
        assert threading.active_count() - before - clients <= 40
        _assert_works(world)
    finally:
        stop.set()
        for channel in channels:
            channel.close()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_few_connections_are_taken(world: World) -> None:
    """Of many connections that say nothing most are closed at once; peers have theirs."""
    strangers = [socket.create_connection(("127.0.0.1", _port(world)), DEADLINE_S) for _ in range(400)]
    try:
        closed = 0
        while closed < 100:
            closed = sum(_is_closed(stranger) for stranger in strangers)
        assert 400 - closed <= 300
        _assert_works(world)
    finally:
        for stranger in strangers:
            stranger.close()


def _is_closed(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        while sock.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def test_the_oldest_stranger_has_to_go() -> None:
    """One too many: the oldest is ended, and one that has left is not."""
    ended: list[int] = []
    strangers = UnauthenticatedPeers(most=3, limit_s=DEADLINE_S)
    here = [strangers.enter(lambda number=number: ended.append(number)) for number in range(3)]  # type: ignore[misc]
    strangers.leave(here[0])
    strangers.enter(lambda: ended.append(3))
    assert ended == []
    strangers.enter(lambda: ended.append(4))
    assert ended == [1]
    strangers.close()
    assert sorted(ended) == [1, 2, 3, 4]


def test_a_stranger_has_little_time() -> None:
    """A peer that does not authenticate within the time limit is disconnected."""
    gone = threading.Event()
    strangers = UnauthenticatedPeers(most=3, limit_s=0.05)
    strangers.enter(gone.set)
    assert gone.wait(DEADLINE_S)
    assert len(strangers) == 0
    strangers.close()


def test_strangers_cause_few_lines() -> None:
    """Hundreds of complaints in a moment are ten lines."""
    lines: list[str] = []
    complaints = RateLimitedWarnings(lines.append)
    for number in range(500):
        complaints.say(f"stranger {number}")
    assert lines == [f"stranger {number}" for number in range(10)]
