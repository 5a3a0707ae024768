"""The questions that this rank has open at peers, so that it hears of their end."""

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future

from ringtrain._core.transport.base import PeerUnreached, StreamBroken, StreamEnd
from ringtrain._core.wire.failure import PullRefused
from ringtrain._core.wire.messages import decode_message, encode_wire_message
from ringtrain._core.world import neighbours
from ringtrain._core.world.failure_state import PeerClosed, Report
from ringtrain._core.world.ring_config import RingConfig

ALIVE = b"alive"
LEFT = b"left"


class WorldWatches:
    """Who is watched, and who has left. In a world that is no mesh, the next two that have not left.

    `ask(peer, hold, timeout_s)`: asks a peer to answer when it leaves, or at once. `is_over`: whether this rank
    has left, or its world has failed. `report`: takes a loss; `peer_left`: told of a peer that left in good order.
    """

    def __init__(
        self,
        ring: RingConfig,
        ask: "Callable[[int, bool, float], Future[bytes]]",
        is_over: Callable[[], bool],
        report: Callable[[Report], None],
        peer_left: Callable[[int], None],
    ) -> None:
        self._ring = ring
        self._ask = ask
        self._is_over = is_over
        self._report = report
        self._peer_left = peer_left
        self._lock = threading.Lock()
        self._left: set[int] = set()
        self._watched = set(neighbours.watched_ranks(ring.rank, ring.size))
        # Whether all have met, and this rank watches only some of them.
        self.are_sparse = False

    def has_left(self, peer: int) -> bool:
        """Whether `peer` has said that it shuts down. That news may still be on its way."""
        return peer in self._left

    def who_left(self, peers: frozenset[int]) -> int | None:
        """One of `peers` that has said so, if there is one."""
        return min(self._left & peers, default=None)

    def watch(self, peer: int) -> None:
        """Keep one question open at `peer`, which has been met: it ends when the peer does, or its world.

        In a world that is no mesh every partner is first told, once, that they have met, and those that are not
        watched nothing more. A question that is kept open may be broken off before it arrives.
        """
        self._question(peer, neighbours.is_mesh(self._ring.size))

    def end_meeting(self) -> None:
        """All have met: from now on ranks that left are no longer watched, and the next ones are."""
        self.are_sparse = not neighbours.is_mesh(self._ring.size)
        self._watch_next()

    def farewell(self) -> bytes:
        """What a watcher is told when this rank leaves: that, and who else has left, as nobody else may know."""
        return LEFT if neighbours.is_mesh(self._ring.size) else LEFT + encode_wire_message(self.left())

    def left(self) -> list[int]:
        """The ranks that this one knows to have left in good order."""
        return sorted(self._left.copy())

    def _question(self, peer: int, hold: bool, again: bool = False) -> None:
        answer = self._ask(peer, hold, 2 * self._ring.timeout_s)
        answer.add_done_callback(lambda done: self._ended(peer, hold, done, again))

    def _ended(self, peer: int, hold: bool, answer: "Future[bytes]", again: bool) -> None:
        if self._is_over():
            return
        error = answer.exception()
        if error is None and answer.result().startswith(LEFT):
            self.note_left({peer, *decode_message(answer.result().removeprefix(LEFT) or b"[]")})
        elif error is None and not hold:
            if peer in self._watched:
                self._question(peer, True, again=True)
        elif error is None or (isinstance(error, StreamBroken) and error.how is StreamEnd.TIMEOUT):
            # Who computes without releasing the interpreter answers late: it is alive.
            self._question(peer, hold, again=True)
        elif _is_peer_elsewhere(error) or (isinstance(error, PeerUnreached) and again):
            # Between two questions it has left, and its process has ended, or answers in its next world. Or it has
            # died: whoever had a question there hears of that.
            self.note_left({peer})
        elif isinstance(error, PullRefused):
            self._report(error.failure)
        else:
            self._report(PeerClosed(peer, str(error), None))

    def note_left(self, ranks: set[int]) -> None:
        """These have left in good order: that fails nobody before it needs one of them."""
        with self._lock:
            new = ranks - self._left - {self._ring.rank}
            self._left |= new
        for peer in new:
            self._peer_left(peer)
        self._watch_next()

    def _watch_next(self) -> None:
        """Where ranks that this one watched have left, watch the next ones."""
        if not self.are_sparse or self._is_over():
            return
        with self._lock:
            now = neighbours.watched_ranks(self._ring.rank, self._ring.size, self._left)
            new = [peer for peer in now if peer not in self._watched]
            self._watched.update(new)
        for peer in new:
            answer = self._ask(peer, False, self._ring.probe_timeout_s)
            answer.add_done_callback(functools.partial(self._next_answered, peer))

    def _next_answered(self, peer: int, answer: "Future[bytes]") -> None:
        if has_watched_peer_gone(answer):
            # Both that watched it have just left, and nobody knows how it ended: in good order, as they did. A
            # rank that needs it finds its connection broken.
            self.note_left({peer})
        else:
            self._ended(peer, True, answer, again=False)


def has_watched_peer_gone(answer: "Future[bytes]") -> bool:
    """Whether the process that was asked is not there any more, or is in its next world."""
    error = answer.exception()
    return _is_peer_elsewhere(error) or (isinstance(error, StreamBroken) and error.how is StreamEnd.CLOSED)


def _is_peer_elsewhere(error: BaseException | None) -> bool:
    return isinstance(error, PullRefused) and error.is_of_a_stranger
