"""The one place that decides which rank is to blame, and tells all others.

Whoever notices that something is wrong (a stream that broke, a watch that ended, a deadline) reports it here and
waits for the failure_state. One judge a process: however many connections break at once, one reason comes out.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any

from ringtrain.transport.base import Broken, How, Transport
from ringtrain.wire.failure import PullRefused, WorldFailure
from ringtrain.wire.messages import ABORT, STATUS, WATCH, dump, load, load_fields
from ringtrain.world import authentication
from ringtrain.world.failure_state import FailureState
from ringtrain.world.ring_config import RingConfig

ALIVE = b"alive"
LEFT = b"left"


@dataclass(frozen=True)
class Activity:
    """The collective that a rank is in, for messages and for probing: `allreduce #7 "conv1.weight"`."""

    label: str
    process_set: int
    sequence: int


@dataclass(frozen=True)
class Closed:
    """The connection to `peer` broke."""

    peer: int
    detail: str
    activity: Activity | None


@dataclass(frozen=True)
class Stalled:
    """Nothing came from `peers` within the deadline."""

    peers: tuple[int, ...]
    waited_s: float
    activity: Activity


Report = Closed | Stalled | WorldFailure


class Monitor:
    """Watches all peers, judges reports, and announces the verdict to every peer before it is raised here."""

    def __init__(
        self,
        ring: RingConfig,
        transport: Transport,
        failure_state: FailureState,
        identity: Callable[[int], dict[str, object]],
        peer_left: Callable[[int], None],
    ) -> None:
        self._ring = ring
        self._transport = transport
        self._failure_state = failure_state
        self._identity = identity  # what proves to a peer who asks
        self._peer_left = peer_left  # told of a peer that shuts down in good order
        self._reports: queue.SimpleQueue[Report | None] = queue.SimpleQueue()
        self._left: set[int] = set()
        self._announced = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._judge_reports, name="ringtrain-monitor", daemon=True)

    def start(self) -> None:
        """Begin to judge what is reported."""
        self._thread.start()

    def stop(self) -> None:
        self._stopped = True
        self._reports.put(None)
        if self._thread.ident is not None:
            self._thread.join()
        self._announced.set()  # if there was something to announce, it has been

    def report(self, report: Report) -> None:
        """Hand in what was noticed. Returns at once; the verdict follows, within a fifth of the timeout."""
        self._reports.put(report)

    def has_left(self, peer: int) -> bool:
        """Whether `peer` has said that it shuts down. That news may still be on its way."""
        return peer in self._left

    def answers(self, peer: int) -> bool:
        """Whether the process that this rank has met as `peer` is there: at its address, and in this world."""
        answer = self._ask_status(peer)
        wait([answer], timeout=self._ring.probe_timeout_s)
        return _answered(answer)

    def statuses(self, peers: tuple[int, ...]) -> dict[int, Any]:
        """What those of `peers` that answer say of themselves."""
        asked = {peer: self._ask_status(peer) for peer in peers}
        wait(asked.values(), timeout=self._ring.probe_timeout_s)
        return {peer: load(answer.result()) for peer, answer in asked.items() if _answered(answer)}

    def _ask_status(self, peer: int) -> "Future[bytes]":
        return self._transport.ask(peer, STATUS, dump(self._identity(peer)), self._ring.probe_timeout_s)

    def await_announced(self, timeout_s: float) -> None:
        """Wait until the peers know the failure_state, so that this process may end."""
        self._announced.wait(timeout_s)

    def announce(self, failure: WorldFailure) -> None:
        """Tell every peer, at most for the time of a probe."""
        answers = [
            self._transport.ask(peer, ABORT, self._abort(peer, failure), self._ring.probe_timeout_s)
            for peer in self._ring.peers
            if peer not in self._left
        ]
        wait(answers, timeout=self._ring.probe_timeout_s)
        self._announced.set()

    def heed(self, request: bytes) -> None:
        """Adopt a peer's announcement if it proves the token."""
        message = load_fields(request, failure=str, proof=str)
        if not authentication.same(self._abort_proof(self._ring.rank, message["failure"]), message["proof"]):
            raise PullRefused(WorldFailure("configuration", "an announcement without proof of the job's token"))
        self.adopt(WorldFailure.decode(message["failure"]))

    def adopt(self, failure: WorldFailure) -> None:
        """Take a failure that peers hear of without this rank."""
        if self._failure_state.reach(failure):
            self._announced.set()

    def _abort(self, peer: int, failure: WorldFailure) -> bytes:
        text = failure.encode()
        return dump({"failure": text, "proof": self._abort_proof(peer, text), **self._identity(peer)})

    def _abort_proof(self, peer: int, text: str) -> str:
        """For one attempt only: a recording must not end the next one, whose token is the same."""
        generation = str(self._ring.generation).encode()
        return authentication.proof(self._ring.token, b"abort", text.encode(), str(peer).encode(), generation)

    def watch(self, peer: int) -> None:
        """Keep one question open at `peer`, which has been met: it ends when the peer does, or its world."""
        answer = self._transport.ask(peer, WATCH, dump(self._identity(peer)), 2 * self._ring.timeout_s)
        answer.add_done_callback(lambda done: self._watch_ended(peer, done))

    def _watch_ended(self, peer: int, answer: "Future[bytes]") -> None:
        if self._stopped or self._failure_state.failure is not None:
            return
        error = answer.exception()
        if error is None and answer.result() == LEFT:
            self._left.add(peer)
            self._peer_left(peer)
        elif error is None or (isinstance(error, Broken) and error.how is How.TIMEOUT):
            self.watch(peer)  # a rank that computes without releasing the interpreter answers late: it is alive
        elif isinstance(error, PullRefused) and error.failure.kind == "stranger":
            # Between two questions it has left, and the next world of its process answers.
            self._left.add(peer)
            self._reports.put(Closed(peer, "it has left this world", None))
        elif isinstance(error, PullRefused):
            self._reports.put(error.failure)
        else:
            self._reports.put(Closed(peer, str(error), None))

    def _judge_reports(self) -> None:
        while (report := self._reports.get()) is not None:
            if self._failure_state.failure is not None:
                continue
            failure = self._judge(report)
            if self._failure_state.reach(failure):
                self.announce(failure)

    def _judge(self, report: Report) -> WorldFailure:
        if isinstance(report, WorldFailure):
            return report
        if isinstance(report, Stalled):
            return self._judge_stall(report)
        # A peer that raises an error announces it before it goes: wait for that, it says more.
        if self._failure_state.wait(self._ring.settle_s) and self._failure_state.failure is not None:
            return self._failure_state.failure
        during = f" during {report.activity.label}" if report.activity else ""
        if report.peer in self._left:
            text = f"rank {report.peer} has shut down"
            if report.activity:
                text += f", and rank {self._ring.rank} needs it for {report.activity.label}"
        else:
            text = f"{self._ring.name(report.peer)} was lost{during}: {report.detail or 'connection closed'}"
        return WorldFailure("lost", text, report.peer)

    def _judge_stall(self, stall: Stalled) -> WorldFailure:
        """Ask those who kept this rank waiting: not there, behind, or waiting themselves?"""
        label, waited = stall.activity.label, f"after {stall.waited_s:.3g} s"
        answers = self.statuses(stall.peers)
        for answer in answers.values():
            if answer["failure"] is not None:
                return WorldFailure.decode(answer["failure"])
        for peer in stall.peers:
            if peer not in answers:
                return WorldFailure("lost", f"{self._ring.name(peer)} does not answer {waited} in {label}", peer)
        for peer, answer in answers.items():
            if answer["reached"].get(str(stall.activity.process_set), 0) < stall.activity.sequence:
                return WorldFailure(
                    "lost",
                    f"rank {peer} has not reached {label} {waited} that rank {self._ring.rank} waited; rank "
                    f"{peer} {answer['activity']}. RINGTRAIN_STALL_TIMEOUT says how long ranks wait",
                    peer,
                )
        first = stall.peers[0]
        return WorldFailure(
            "lost", f"{self._ring.name(first)} answers, but has not finished {label} {waited}", first
        )


def _answered(answer: "Future[bytes]") -> bool:
    return answer.done() and answer.exception() is None
