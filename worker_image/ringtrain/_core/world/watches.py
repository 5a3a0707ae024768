"""Detection of ended peers by requests that stay open: the end of a request signals the end of the peer."""

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
    """Peers that this rank watches, and peers that have shut down.

    `ask(peer, hold, timeout_s)`: sends a request, which the peer answers at once or, if `hold` is True, when it leaves.
    `is_over`: returns whether this rank has left, or its world has failed. `report`: called with a lost peer.
    `peer_left`: called with a peer that shut down normally.
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
        # Whether all have joined, and this rank watches only some of them.
        self.are_sparse = False

    def has_left(self, peer: int) -> bool:
        """Return whether `peer` has announced its shutdown, as far as this rank knows."""
        return peer in self._left

    def departed_rank(self, peers: frozenset[int]) -> int | None:
        """Return one of `peers` that has announced its shutdown; None if none has."""
        return min(self._left & peers, default=None)

    def watch(self, peer: int) -> None:
        """Start to watch `peer`, with which the handshake has succeeded, by a request that stays open.

        In a world that is not a mesh, every partner first gets one short request, which confirms the handshake. Only
        watched partners get the open request. An open request may break before it arrives.
        """
        self._question(peer, neighbours.is_mesh(self._ring.size))

    def end_handshake(self) -> None:
        """End the handshake phase: from now on, this rank replaces watched ranks that leave by the next ones."""
        self.are_sparse = not neighbours.is_mesh(self._ring.size)
        self._watch_next()

    def farewell(self) -> bytes:
        """Return the reply to watchers: this rank has shut down normally.

        In a large world the reply also lists the other ranks that are known to have shut down normally.
        """
        return LEFT if neighbours.is_mesh(self._ring.size) else LEFT + encode_wire_message(self.left())

    def left(self) -> list[int]:
        """Return the ranks that are known to have shut down normally."""
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
            # A process that computes without releasing the GIL answers late: it is alive.
            self._question(peer, hold, again=True)
        elif _is_peer_elsewhere(error) or (isinstance(error, PeerUnreached) and again):
            # Between two requests the peer has left, and its process has ended, or answers in its next world. Or it has
            # died: another rank with an open request notices that.
            self.note_left({peer})
        elif isinstance(error, PullRefused):
            self._report(error.failure)
        else:
            self._report(PeerClosed(peer, str(error), None))

    def note_left(self, ranks: set[int]) -> None:
        """Record that these ranks have shut down normally, which is a failure only if this rank needs one of them."""
        with self._lock:
            new = ranks - self._left - {self._ring.rank}
            self._left |= new
        for peer in new:
            self._peer_left(peer)
        self._watch_next()

    def _watch_next(self) -> None:
        """Watch the following ranks in place of watched ranks that have left."""
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
            # Both watchers have just left, and it is unknown how the peer ended: assume in order, like them. A rank
            # that needs it finds its connection broken.
            self.note_left({peer})
        else:
            self._ended(peer, True, answer, again=False)


def has_watched_peer_gone(answer: "Future[bytes]") -> bool:
    """Return whether the answer shows that the peer's process has ended or is in another world."""
    error = answer.exception()
    return _is_peer_elsewhere(error) or (isinstance(error, StreamBroken) and error.how is StreamEnd.CLOSED)


def _is_peer_elsewhere(error: BaseException | None) -> bool:
    return isinstance(error, PullRefused) and error.is_from_another_world
