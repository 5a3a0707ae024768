"""A rank that leaves while a failure is announced to it: it passes that on, or tells the peer that it does not."""

import threading
from concurrent.futures import Future
from typing import Any

import pytest

from ringtrain._core.transport.base import StreamBroken
from ringtrain._core.wire.failure import WorldFailure
from ringtrain._core.wire.messages import encode_wire_message
from ringtrain._core.world.failure_state import PeerClosed, WorldFailureState
from ringtrain._core.world.monitor import WorldMonitor
from ringtrain._core.world.neighbours import MESH_MOST, failure_notified_ranks
from ringtrain._core.world.ring_config import RingConfig

SIZE = MESH_MOST + 4
ANNOUNCEMENT = encode_wire_message({"failure": WorldFailure("lost", "rank 3 was lost", 3).encode(), "proof": ""})


class Answering:
    """A transport on which all peers answer at once. `asked`: each peer, and whether this rank had left then."""

    def __init__(self, has_left: threading.Event) -> None:
        self.asked: list[tuple[int, bool]] = []
        self._has_left = has_left

    def ask(self, peer: int, method: str, request: bytes, timeout_s: float) -> "Future[bytes]":
        self.asked.append((peer, self._has_left.is_set()))
        answer: Future[bytes] = Future()
        answer.set_result(b"")
        return answer


def monitor_of(transport: Any, failure_state: WorldFailureState) -> WorldMonitor:
    ring = RingConfig(0, SIZE, ("127.0.0.1:1",) * SIZE)
    made = WorldMonitor(ring, transport, failure_state, lambda peer: {}, lambda peer: None)
    made.watches.end_handshake()
    made.start()
    return made


def test_a_rank_that_leaves_as_it_hears_of_a_failure_passes_it_on_first() -> None:
    """Its own thread sees the failure, and leaves, before the thread that heard of it has told anyone."""
    has_left, failure_state = threading.Event(), WorldFailureState()
    transport = Answering(has_left)
    monitor = monitor_of(transport, failure_state)

    def leave() -> None:
        monitor.stop()
        has_left.set()

    leaving = threading.Thread(target=leave)

    def heard() -> None:  # in the middle of the announcement
        leaving.start()
        has_left.wait(0.5)  # in vain: it may not end yet

    failure_state.on_reached(heard)
    transport.asked.clear()
    monitor.heed(ANNOUNCEMENT)
    leaving.join(60)
    assert has_left.is_set()
    assert sorted(transport.asked) == [(group.start, False) for group in failure_notified_ranks(SIZE)]


def test_a_rank_that_has_left_says_that_it_passes_nothing_on() -> None:
    """So that the peer tells others in its place; where it knows of a failure, it has told them already."""
    transport = Answering(threading.Event())
    left, failure_state = monitor_of(transport, WorldFailureState()), WorldFailureState()
    left.stop()
    transport.asked.clear()
    with pytest.raises(StreamBroken, match="rank 0 has shut down"):
        left.heed(ANNOUNCEMENT)
    knows = monitor_of(transport, failure_state)
    knows.heed(ANNOUNCEMENT)
    knows.stop()
    passed_on = len(transport.asked)
    knows.heed(ANNOUNCEMENT)
    assert len(transport.asked) == passed_on > 0


def test_a_rank_that_leaves_takes_no_leaver_for_lost() -> None:
    """It finds a watch broken and leaves before it could ask how that peer ended: nobody is told of a loss."""
    transport, failure_state = Answering(threading.Event()), WorldFailureState()
    monitor = monitor_of(transport, failure_state)
    monitor.knows_all = True
    transport.asked.clear()
    monitor.report(PeerClosed(1, "connection refused", None))
    monitor.stop()
    assert (failure_state.failure, transport.asked) == (None, [])
