"""Failure detector of a world: decides which rank has failed, and notifies all others.

Each detector (a broken stream, an ended watch, a deadline) reports here and waits for the failure state. One monitor
per process: if many connections break at once, there is still one cause.
"""

import functools
import queue
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import Any, Final

from ringtrain._core.transport.base import StreamBroken, StreamEnd, Transport
from ringtrain._core.wire.failure import PullRefused, WorldFailure
from ringtrain._core.wire.messages import (
    ABORT,
    STATUS,
    WATCH,
    decode_message,
    decode_message_fields,
    encode_wire_message,
)
from ringtrain._core.world import neighbours
from ringtrain._core.world.failure_state import PeerClosed, PeersStalled, RankActivity, Report, WorldFailureState
from ringtrain._core.world.ring_config import RingConfig
from ringtrain._core.world.spread import FailureSpread, await_peer_answers, is_peer_answered
from ringtrain._core.world.watches import WorldWatches, has_watched_peer_gone
from ringtrain.shared import authentication

_ASKED_AT_ONCE: Final = 32  # in addition to near ranks


class WorldMonitor:
    """Failure detector of one rank. Watches peers, examines reports, and announces a failure before this rank raises
    it.

    The module `neighbours` defines which peers a rank watches and notifies.
    """

    def __init__(
        self,
        ring: RingConfig,
        transport: Transport,
        failure_state: WorldFailureState,
        identity: Callable[[int], dict[str, object]],
        peer_left: Callable[[int], None],
    ) -> None:
        self._ring = ring
        self._transport = transport
        self._failure_state = failure_state
        self._identity = identity  # fields that authenticate this rank to a peer
        self._reports: queue.SimpleQueue[Report | None] = queue.SimpleQueue()
        self.watches = WorldWatches(ring, self._ask_watch, self._is_over, self.report, peer_left)
        self.knows_all = False  # set when this rank has a session with every rank
        self._lock = threading.Lock()
        self._heeded = threading.Condition(self._lock)
        self._heeding = 0  # announcements that are being processed, and may have to be forwarded
        self._spread: FailureSpread | None = None
        self._announced = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._judge_reports, name="ringtrain-monitor", daemon=True)

    def start(self) -> None:
        """Start the thread that finds out which reported events are failures of the world."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, after the peers have been notified of the failure, if any. Takes at most a few probe timeouts."""
        with self._heeded:
            self._stopped = True
        self._reports.put(None)
        if self._thread.ident is not None:
            self._thread.join()
        with self._heeded:
            self._heeded.wait_for(lambda: not self._heeding, 2 * self._ring.probe_timeout_s)
        if self._spread is not None:
            self._spread.wait(2 * self._ring.probe_timeout_s)
            self._spread.give_up()
        self._announced.set()  # all announcements have been sent

    def report(self, report: Report) -> None:
        """Queue an event for the monitor's thread. If the event shows a failure, the world fails, usually within a
        fifth of the timeout."""
        self._reports.put(report)

    def answers(self, peer: int) -> bool:
        """Return whether the process that joined as rank `peer` still answers as a member of this world."""
        answer = self._ask_status(peer)
        await_peer_answers([answer], self._ring.probe_timeout_s)
        return is_peer_answered(answer)

    def statuses(self, peers: Sequence[int]) -> dict[int, Any]:
        """Return the status replies of `peers`, by rank, without those that do not answer."""
        requests = {peer: self._ask_status(peer) for peer in peers}
        await_peer_answers(list(requests.values()), self._ring.probe_timeout_s)
        return {peer: decode_message(answer.result()) for peer, answer in requests.items() if is_peer_answered(answer)}

    def _ask_watch(self, peer: int, hold: bool, timeout_s: float) -> "Future[bytes]":
        request = encode_wire_message({**self._identity(peer), "hold": hold})
        return self._transport.ask(peer, WATCH, request, timeout_s)

    def _is_over(self) -> bool:
        return self._stopped or self._failure_state.failure is not None

    def _ask_status(self, peer: int) -> "Future[bytes]":
        """Request the status of `peer`, a second time if the connection breaks. Return the future of the reply."""
        answer: Future[bytes] = Future()

        def ask() -> "Future[bytes]":
            return self._transport.ask(
                peer, STATUS, encode_wire_message(self._identity(peer)), self._ring.probe_timeout_s
            )

        def first(future: "Future[bytes]") -> None:
            error = future.exception()
            if isinstance(error, StreamBroken) and error.how is StreamEnd.CLOSED:
                ask().add_done_callback(last)
            else:
                last(future)

        def last(future: "Future[bytes]") -> None:
            if (error := future.exception()) is not None:
                answer.set_exception(error)
            else:
                answer.set_result(future.result())

        ask().add_done_callback(first)
        return answer

    def await_announced(self, timeout_s: float) -> None:
        """Wait until the peers have been notified of the failure, at most `timeout_s`."""
        self._announced.wait(timeout_s)

    def announce(self, failure: WorldFailure) -> None:
        """Notify the peers of `failure`, and wait for their replies for at most two probe timeouts."""
        self._begin_spread(failure).wait(2 * self._ring.probe_timeout_s)
        self._announced.set()

    def _begin_spread(self, failure: WorldFailure) -> FailureSpread:
        """Start to notify the peers of `failure`; if a failure is already being sent, return that transmission."""
        probe_s = self._ring.probe_timeout_s

        def tell(peer: int) -> "Future[bytes]":
            return self._transport.ask(peer, ABORT, self._abort(peer, failure), probe_s)

        with self._lock:
            begun = self._spread
            spread = self._spread = begun or FailureSpread(self._groups(), tell, self._announced.set)
        if begun is None:
            spread.begin()
        return spread

    def _groups(self) -> list[list[int]]:
        """Return the ranks that this rank notifies of a failure, in groups; one rank of each group is enough.

        During the handshake of a large world these are all partners, because some of them may not have joined.
        """
        rank, size = self._ring.rank, self._ring.size
        distances = [range(d, d + 1) for d in range(1, size)]
        if not neighbours.is_mesh(size):
            notified = neighbours.failure_notified_ranks(size)
            behind = [range(size - group.start, size - group.start + 1) for group in notified]
            distances = notified if self.watches.are_sparse else notified + behind
        groups = [[(rank + distance) % size for distance in group] for group in distances]
        return [[peer for peer in group if not self.watches.has_left(peer)] for group in groups]

    def heed(self, request: bytes) -> None:
        """Accept a failure that a peer announces, if the peer proves the token; in a large world, forward it.

        Raises StreamBroken if this rank leaves and forwards nothing, so that the peer notifies others instead.
        """
        message = decode_message_fields(request, failure=str, proof=str)
        if not authentication.is_same_proof(self._abort_proof(self._ring.rank, message["failure"]), message["proof"]):
            raise PullRefused(WorldFailure("configuration", "a failure was announced without proof of the job's token"))
        with self._heeded:
            if self._stopped and self._failure_state.failure is None:
                raise StreamBroken(StreamEnd.CLOSED, f"rank {self._ring.rank} has shut down")
            self._heeding += 1
        try:
            self._pass_on(WorldFailure.decode(message["failure"]))
        finally:
            with self._heeded:
                self._heeding -= 1
                self._heeded.notify_all()

    def _pass_on(self, failure: WorldFailure) -> None:
        if not self._failure_state.reach(failure):
            return
        if neighbours.is_mesh(self._ring.size):
            self._announced.set()
        else:
            self._begin_spread(failure)

    def adopt(self, failure: WorldFailure) -> None:
        """Record a failure without notifying the peers, who get it from elsewhere."""
        if self._failure_state.reach(failure):
            self._announced.set()

    def _abort(self, peer: int, failure: WorldFailure) -> bytes:
        text = failure.encode()
        return encode_wire_message({"failure": text, "proof": self._abort_proof(peer, text), **self._identity(peer)})

    def _abort_proof(self, peer: int, text: str) -> str:
        """Return the proof of the token in an announcement to `peer`, valid for this attempt of the job only."""
        generation = str(self._ring.generation).encode()
        return authentication.proof(self._ring.token, b"abort", text.encode(), str(peer).encode(), generation)

    def look_for(self, peers: Collection[int], activity: RankActivity, is_needed: Callable[[int], bool]) -> None:
        """Start to ask `peers` for their status, and report each one that has ended while `is_needed(peer)`.

        This covers a case that no watch reports: a rank has left although others still wait for it.
        """

        def answered(peer: int, answer: "Future[bytes]") -> None:
            if not self._stopped and has_watched_peer_gone(answer) and is_needed(peer):
                self.report(PeerClosed(peer, str(answer.exception()), activity))

        for peer in peers:
            self._ask_status(peer).add_done_callback(functools.partial(answered, peer))

    def _judge_reports(self) -> None:
        while (report := self._reports.get()) is not None:
            if self._failure_state.failure is not None:
                continue
            failure = self._judge(report)
            if failure is not None and self._failure_state.reach(failure):
                self.announce(failure)

    def _judge(self, report: Report) -> WorldFailure | None:
        if isinstance(report, WorldFailure):
            return report
        if isinstance(report, PeersStalled):
            return self._judge_stall(report)
        # A peer that raises an error announces it before it ends; wait for that, because it contains the cause.
        if self._failure_state.wait(self._ring.settle_s) and self._failure_state.failure is not None:
            return self._failure_state.failure
        during = f" during {report.activity.label}" if report.activity else ""
        if self._left_in_order(report.peer):
            if report.activity is None:  # a watch broke before the farewell arrived
                self.watches.note_left({report.peer})
                return None
            needed_for = f"rank {self._ring.rank} needs it for {report.activity.label}"
            text = f"rank {report.peer} has shut down, and {needed_for}"
        elif report.activity is None and self._stopped and self.watches.are_sparse:
            return None  # this rank leaves without an inquiry; ranks that need the peer find out
        else:
            text = f"{self._ring.name(report.peer)} was lost{during}: {report.detail or 'connection closed'}"
        return WorldFailure("lost", text, report.peer)

    def _left_in_order(self, peer: int) -> bool:
        """Return whether `peer` has shut down normally, as known to this rank or to the ranks that watched it."""
        if self.watches.has_left(peer) or neighbours.is_mesh(self._ring.size) or not self.knows_all:
            return self.watches.has_left(peer)
        excluded = {self._ring.rank}
        end = time.monotonic() + self._ring.probe_timeout_s
        while time.monotonic() < end and not self._is_over():
            witnesses = neighbours.witness_ranks(peer, self._ring.size, excluded.union(self.watches.left()))
            if answers := self.statuses(witnesses):
                return any(peer in answer["left"] for answer in answers.values())
            if not witnesses:
                return False
            excluded |= set(witnesses)
        return False

    def _judge_stall(self, stall: PeersStalled) -> WorldFailure:
        """Return the failure for a timeout. It names the peer that causes it, because that peer does not answer or is
        behind.

        If this rank waits for many peers, it first asks only the peers near it. If these wait too, a rank near the
        cause should find the cause and notify all ranks. If no rank does so in time, this rank asks the remaining
        peers, some at a time.
        """
        near = {stall.peers[0], *neighbours.near_ranks(self._ring.rank, {self._ring.rank, *stall.peers})}
        further = [peer for peer in stall.peers if peer not in near]
        failure = self._first_blocking_failure([peer for peer in stall.peers if peer in near], stall)
        if failure is None and further and self._failure_state.wait(2 * self._ring.probe_timeout_s):
            failure = self._failure_state.failure
        while failure is None and further and not self._is_over():
            failure = self._first_blocking_failure(further[:_ASKED_AT_ONCE], stall)
            del further[:_ASKED_AT_ONCE]
        waited = f"{stall.activity.label} after {stall.waited_s:.3g} s"
        first = stall.peers[0]
        return failure or WorldFailure(
            "lost", f"{self._ring.name(first)} answers, but has not finished {waited}", first
        )

    def _first_blocking_failure(self, peers: Sequence[int], stall: PeersStalled) -> WorldFailure | None:
        """Return the failure of the first of `peers` that has failed, does not answer or is behind.

        Return None if all peers have reached this collective.
        """
        label, waited = stall.activity.label, f"after {stall.waited_s:.3g} s"
        answers = self.statuses(peers)
        for answer in answers.values():
            if answer["failure"] is not None:
                return WorldFailure.decode(answer["failure"])
        for peer in peers:
            if peer not in answers:
                return WorldFailure("lost", f"{self._ring.name(peer)} does not answer {waited} in {label}", peer)
        for peer, answer in answers.items():
            if answer["reached"].get(str(stall.activity.process_set), 0) < stall.activity.sequence:
                return WorldFailure(
                    "lost",
                    f"rank {peer} has not reached {label}, for which rank {self._ring.rank} waited "
                    f"{stall.waited_s:.3g} s; rank {peer} {answer['activity']}. RINGTRAIN_STALL_TIMEOUT sets the limit",
                    peer,
                )
        return None
