"""A wait that is too long: who is to blame, and how many are asked for it."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from ringtrain._core.transport.base import StreamBroken, StreamEnd
from ringtrain._core.wire.failure import WorldFailure
from ringtrain._core.wire.messages import ABORT, encode_wire_message
from ringtrain._core.world.failure_state import PeersStalled, RankActivity, WorldFailureState
from ringtrain._core.world.monitor import WorldMonitor
from ringtrain._core.world.neighbours import near_ranks
from ringtrain._core.world.ring_config import RingConfig

SIZE = 1000
LATE = 500


class Waiting:
    """A transport to ranks that all wait in collective 7, but for one that is late, or does not answer."""

    def __init__(self, silent: bool = False, asked: Callable[[int], None] = lambda peer: None) -> None:
        self.asked: list[int] = []
        self._silent = silent
        self._on_asked = asked

    def ask(self, peer: int, method: str, request: bytes, timeout_s: float) -> "Future[bytes]":
        answer: Future[bytes] = Future()
        if method == ABORT:
            answer.set_result(b"")
            return answer
        self.asked.append(peer)
        self._on_asked(peer)
        if peer == LATE and self._silent:
            answer.set_exception(StreamBroken(StreamEnd.TIMEOUT, "nothing came"))
        else:
            activity = "has begun no collective" if peer == LATE else "is in barrier #7 for 9 s"
            reached = {"0": 6 if peer == LATE else 7}
            answer.set_result(
                encode_wire_message({"reached": reached, "activity": activity, "failure": None, "left": []})
            )
        return answer


def verdict(rank: int, transport: Any, failure_state: WorldFailureState, timeout_s: float = 60.0) -> WorldFailure:
    """Return the failure that `rank` finds after it has waited too long in a barrier of all ranks."""
    ring = RingConfig(rank, SIZE, ("127.0.0.1:1",) * SIZE, timeout_s=timeout_s)
    monitor = WorldMonitor(ring, transport, failure_state, lambda peer: {}, lambda peer: None)
    others = [(rank + distance) % SIZE for distance in range(1, SIZE)]
    monitor.start()
    monitor.report(PeersStalled(tuple(others), 10.0, RankActivity("barrier #7", 0, 7)))
    assert failure_state.wait(60)
    monitor.stop()
    assert failure_state.failure is not None
    return failure_state.failure


@pytest.mark.parametrize("silent", [False, True], ids=["late", "silent"])
def test_a_rank_near_the_late_one_finds_it_with_few_questions(silent: bool) -> None:
    transport = Waiting(silent)
    failure = verdict(LATE - 64, transport, WorldFailureState())
    words = "does not answer" if silent else f"has not reached barrier #7, for which rank {LATE - 64} waited 10 s"
    assert words in failure.message
    assert failure.rank == LATE
    assert len(transport.asked) <= 20


def test_a_rank_far_from_the_late_one_hears_who_it_is_from_others() -> None:
    """It asks those near it, who wait themselves, and gives those who are near the late one time to tell."""
    failure_state, told = WorldFailureState(), WorldFailure("lost", "rank 500 has not reached it", LATE)
    last = near_ranks(3, range(SIZE))[-1]
    transport = Waiting(asked=lambda peer: failure_state.reach(told) if peer == last else None)
    assert verdict(3, transport, failure_state) == told
    assert len(transport.asked) <= 20


def test_a_rank_that_hears_nothing_asks_on() -> None:
    """Those near the late one may have begun to wait later, and wait on."""
    transport = Waiting()
    assert verdict(3, transport, WorldFailureState(), timeout_s=0.5).rank == LATE
    assert len(set(transport.asked)) == len(transport.asked) <= SIZE


class Closing(Waiting):
    """Each peer's resting connection is closed as the first question comes to it."""

    def ask(self, peer: int, method: str, request: bytes, timeout_s: float) -> "Future[bytes]":
        if peer in self.asked:
            return super().ask(peer, method, request, timeout_s)
        self.asked.append(peer)
        broken: Future[bytes] = Future()
        broken.set_exception(StreamBroken(StreamEnd.CLOSED, "connection idle"))
        return broken


def test_a_connection_that_was_closed_for_resting_is_no_loss() -> None:
    """Its peer is asked once more, over another one: here it is alive, and the late one is named."""
    assert "has not reached barrier #7" in verdict(LATE - 64, Closing(), WorldFailureState()).message
