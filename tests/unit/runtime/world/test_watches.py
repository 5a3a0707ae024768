"""Conclusions of a rank from the end of a question that it had open at a peer."""

from concurrent.futures import Future

import pytest

from ringtrain._core.transport.base import PeerUnreached, StreamBroken, StreamEnd
from ringtrain._core.world.failure_state import PeerClosed, Report
from ringtrain._core.world.neighbours import MESH_MOST
from ringtrain._core.world.ring_config import RingConfig
from ringtrain._core.world.watches import ALIVE, LEFT, WorldWatches

REFUSED = "failed to connect to all addresses"


class Asked:
    """The questions that a rank 0 of `size` has asked, and what it reported."""

    def __init__(self, size: int) -> None:
        self.questions: list[tuple[int, bool, Future[bytes]]] = []
        self.reports: list[Report] = []
        self.left: list[int] = []
        ring = RingConfig(0, size, ("127.0.0.1:1",) * size)
        self.watches = WorldWatches(ring, self._ask, lambda: False, self.reports.append, self.left.append)

    def _ask(self, peer: int, hold: bool, timeout_s: float) -> "Future[bytes]":
        answer: Future[bytes] = Future()
        self.questions.append((peer, hold, answer))
        return answer

    def answer(self, peer: int, hold: bool, answer: bytes | Exception) -> None:
        """Answer the question of this kind that is open at `peer`."""
        (asked,) = [each for each in self.questions if each[:2] == (peer, hold)]
        self.questions.remove(asked)
        if isinstance(answer, bytes):
            asked[2].set_result(answer)
        else:
            asked[2].set_exception(answer)


@pytest.fixture
def large() -> Asked:
    """A rank of a world that is no mesh, which watches ranks 1 and 2."""
    asked = Asked(MESH_MOST + 4)
    for peer in (1, 2):
        asked.watches.watch(peer)
        asked.answer(peer, False, ALIVE)
    asked.watches.end_handshake()
    return asked


def test_a_peer_that_left_between_two_questions_is_not_lost(large: Asked) -> None:
    """Its watchers have left as well, so that it was asked whether it is there, and had gone when it was to be
    watched."""
    large.answer(1, True, LEFT + b"[]")
    large.answer(3, False, ALIVE)
    large.answer(3, True, PeerUnreached(REFUSED))
    assert not large.reports
    assert large.left == [1, 3]
    assert [question[:2] for question in large.questions] == [(2, True), (4, False)]


def test_a_peer_that_left_between_two_questions_of_a_mesh_is_not_lost() -> None:
    mesh = Asked(2)
    mesh.watches.watch(1)
    mesh.watches.end_handshake()
    mesh.answer(1, True, ALIVE)
    mesh.answer(1, True, PeerUnreached(REFUSED))
    assert not mesh.reports
    assert mesh.left == [1]


def test_a_peer_whose_connection_breaks_amid_a_question_is_lost(large: Asked) -> None:
    large.answer(1, True, StreamBroken(StreamEnd.CLOSED, "Socket closed"))
    assert large.reports == [PeerClosed(1, "Socket closed", None)]
    assert not large.left


def test_a_peer_that_never_answered_is_lost() -> None:
    """Nobody leaves before all have met."""
    mesh = Asked(2)
    mesh.watches.watch(1)
    mesh.answer(1, True, PeerUnreached(REFUSED))
    assert mesh.reports == [PeerClosed(1, REFUSED, None)]
