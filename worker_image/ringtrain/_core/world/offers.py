"""Table of the frames that this rank offers to its peers, by collective."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ringtrain._core.transport.base import StreamBroken, StreamEnd, TransportCaller
from ringtrain._core.wire.failure import PullRefused, WorldFailure
from ringtrain._core.wire.messages import WireFrame
from ringtrain._core.wire.signature import WireSignature
from ringtrain._core.world.failure_state import WorldFailureState

_ASK_CALLER_S: Final = 0.25
# Shared memory and MPI number their collectives in the other half of the process sets' numbers.
NETWORK_HALF: Final = (1 << 30) - 1

Key = tuple[int, int]  # process set, sequence number in it


class CallerGone(Exception):
    """Error: the peer that requested a frame has cancelled its request or died."""


class BegunCollective(NamedTuple):
    """The newest collective of a process set on this rank. `others`: the other ranks of the set. `before`: signature of
    the previous collective."""

    sequence: int
    what: WireSignature
    others: tuple[int, ...]
    since: float
    before: WireSignature | None


@dataclass
class CollectiveOffer:
    """Frames that this rank offers to its peers in one collective.

    `frames_for(rank)` yields the frames for that peer, as they become ready.
    """

    signature: WireSignature
    frames_for: Callable[[int, TransportCaller], Iterator[WireFrame]]
    waiting_for: set[int] = field(default_factory=set)  # peers that have not read everything yet


class WorldOfferTable:
    """Offers of this rank by collective. Requests of peers wait here until their frames are ready."""

    def __init__(self, rank: int, failure_state: WorldFailureState) -> None:
        self._rank = rank
        self._failure_state = failure_state
        self._lock = threading.RLock()  # lock of all conditions below
        self._changed = threading.Condition(self._lock)
        self._all_pulled = threading.Condition(self._lock)
        self._over = threading.Condition(self._lock)  # for watchers, which wait for the end and not for each frame
        self._offers: dict[Key, CollectiveOffer] = {}
        self._begun: dict[int, BegunCollective] = {}
        self._ended: dict[int, tuple[int, float]] = {}  # last ended collective of a process set, and its time
        self._followed: dict[int, Callable[[], BegunCollective | None]] = {}
        self._details: dict[int, Callable[[], str]] = {}
        self._left: set[int] = set()
        self._closing = False
        failure_state.on_reached(self._wake_all)

    def reached(self) -> dict[int, int]:
        """Return the sequence number of this rank's newest collective, for each process set."""
        return {process_set: begun.sequence for process_set, begun in self._newest().items()}

    def meaning(self, key: Key) -> WireSignature | None:
        """Return this rank's signature of collective `key`; None if `key` is not the newest collective of its process
        set."""
        begun = self._newest().get(key[0])
        return begun.what if begun is not None and begun.sequence == key[1] else None

    def changed(self) -> None:
        """Wake all threads that wait for a frame (one message of tensor data) which this rank sends to a peer.

        Call it when a frame is ready, or when its receiver has ended.
        """
        with self._lock:
            self._changed.notify_all()

    def watcher_gone(self) -> None:
        """Wake the threads that wait, on behalf of peers, for this rank's end. Call it when such a peer has ended."""
        with self._lock:
            self._over.notify_all()

    def publish(self, key: Key, offer: CollectiveOffer, others: tuple[int, ...]) -> None:
        with self._lock:
            self._offers[key] = offer
            self.begin(key, offer.signature, others)
            self._changed.notify_all()

    def begin(self, key: Key, what: WireSignature, others: tuple[int, ...]) -> None:
        """Record that this rank has begun collective `key` with signature `what`."""
        last = self._newest_of(key[0])
        before = None if last is None else last.what
        self._begun[key[0]] = BegunCollective(key[1], what, others, time.monotonic(), before)

    def follow(self, process_set: int, last: Callable[[], BegunCollective | None] | None) -> None:
        """Register the function `last`, which returns the last collective that compiled code ran; None removes it.

        `last` returns the last collective that finished without waiting, with its end time in `since`. Such collectives
        then do not need to call `begin`.
        """
        if last is not None:
            self._followed[process_set] = last
        elif process_set in self._followed:
            newest = self._newest_of(process_set)
            del self._followed[process_set]
            if newest is not None and newest is not self._begun.get(process_set):
                self._begun[process_set], self._ended[process_set] = newest, (newest.sequence, newest.since)

    def _newest_of(self, process_set: int) -> BegunCollective | None:
        begun, last = self._begun.get(process_set), self._followed.get(process_set)
        ended = None if last is None else last()
        return ended if ended is not None and (begun is None or ended.sequence > begun.sequence) else begun

    def _newest(self) -> dict[int, BegunCollective]:
        """Return the newest collective of each process set that has begun one."""
        found = {number: self._newest_of(number) for number in {*self._begun.copy(), *self._followed.copy()}}
        return {number: begun for number, begun in found.items() if begun is not None}

    def end(self, key: Key) -> None:
        """Record that this rank no longer waits in collective `key`."""
        self._ended[key[0]] = key[1], time.monotonic()

    def under_way(self) -> list[tuple[Key, BegunCollective]]:
        """Return the collectives that this rank has begun and that have not ended."""
        return [
            ((process_set, newest.sequence), newest)
            for process_set, newest in self._newest().items()
            if self._end_of(process_set, newest) is None
        ]

    def activity(self) -> str:
        """Return what this rank is doing or did last, as a verb phrase for messages ("is in allreduce #7 …")."""
        begun = self._newest()
        if not begun:
            return "has begun no collective"
        process_set, newest = max(begun.items(), key=lambda item: item[1].since)
        label = self.label((process_set, newest.sequence), newest.what)
        ended = self._end_of(process_set, newest)
        if ended is None:
            return f"is in {label} for {time.monotonic() - newest.since:.0f} s"
        return f"last did {label}, which it ended {time.monotonic() - ended:.0f} s ago"

    def _end_of(self, process_set: int, newest: BegunCollective) -> float | None:
        if newest is not self._begun.get(process_set):
            return newest.since
        sequence, ended = self._ended.get(process_set, (0, 0.0))
        return ended if sequence >= newest.sequence else None

    def describe(self, process_set: int, details: Callable[[], str]) -> None:
        """Register the function `details`, whose text is added to messages about collectives of a process set."""
        self._details[process_set] = details

    def label(self, key: Key, what: WireSignature) -> str:
        """Return a name of collective `key` for messages, such as `allreduce #7 "conv1.weight"`."""
        details = self._details.get(key[0] & NETWORK_HALF)
        about = details() if details is not None else ""
        names = what.label.removeprefix(what.kind)
        return f"{what.kind} #{key[1]}{names}" + (f" on {about}" if about else "")

    def published(self, key: Key) -> CollectiveOffer | None:
        """Return this rank's offer for collective `key`; None if it has none or has ended the collective."""
        return self._offers.get(key)

    def withdraw(self, key: Key) -> None:
        with self._lock:
            self._offers.pop(key, None)
        self.end(key)

    def offer(self, key: Key, caller: TransportCaller) -> CollectiveOffer:
        """Wait until this rank has begun collective `key`, for the peer `caller`, and return its offer."""
        self.wait_until(lambda: key in self._offers or self._has_begun(key), caller)
        offer = self._offers.get(key)
        if offer is None and self._closing and self._failure_state.failure is None:
            raise StreamBroken(StreamEnd.CLOSED, f"rank {self._rank} has shut down")
        if offer is None:
            ended = WorldFailure("internal", f"rank {self._rank} has already ended collective #{key[1]}")
            raise PullRefused(self._failure_state.failure or ended)
        return offer

    def _has_begun(self, key: Key) -> bool:
        begun = self._begun.get(key[0])
        return key[1] <= (0 if begun is None else begun.sequence)  # number 0 is only for checks of the session

    def record_pulled(self, offer: CollectiveOffer, peer: int) -> None:
        with self._lock:
            offer.waiting_for.discard(peer)
            if not offer.waiting_for:
                self._all_pulled.notify_all()

    def peer_left(self, peer: int) -> list[tuple[Key, WireSignature]]:
        """Record that `peer` has shut down. Return the collectives in which it has not read all frames."""
        with self._lock:
            self._left.add(peer)
            self._all_pulled.notify_all()
            return [(key, offer.signature) for key, offer in self._offers.items() if peer in offer.waiting_for]

    def all_taken(self, offer: CollectiveOffer, timeout_s: float) -> bool:
        """Wait until every peer has read all frames of `offer`; return whether they have.

        Return False after a failure, `close`, the shutdown of a peer that has not read all, or `timeout_s`.
        """

        def over() -> bool:
            ended = self._closing or self._failure_state.failure is not None
            return ended or not offer.waiting_for or not self._left.isdisjoint(offer.waiting_for)

        with self._lock:
            self._all_pulled.wait_for(over, timeout_s)
            return not offer.waiting_for

    def departed_rank(self, offer: CollectiveOffer) -> int | None:
        """Return a peer that has shut down before it read all frames of `offer`; None if there is none."""
        return min(self._left & offer.waiting_for, default=None)

    def wait_until(self, ready: Callable[[], bool], caller: TransportCaller) -> None:
        """Wait until `ready()` returns True, while the request of `caller` is being served.

        Raises PullRefused with the world's failure; StreamBroken if this rank shuts down; CallerGone if the caller no
        longer waits.
        """
        with self._lock:
            while not ready():
                self._check_failure()
                if self._closing:
                    raise StreamBroken(StreamEnd.CLOSED, f"rank {self._rank} has shut down")
                if not caller.is_active():
                    raise CallerGone
                # Not every caller's end notifies, so some are polled. The minimum covers the interval between the
                # deadlines of both sides.
                self._changed.wait(min(max(caller.remaining_s(), 0.05), _ASK_CALLER_S))

    def await_end(self, timeout_s: float, caller: TransportCaller) -> bool:
        """Wait until this rank shuts down, and return True; return False after `timeout_s` or if `caller` has ended.

        Raises PullRefused with the world's failure, so that watchers of this rank get it at once.
        """
        end = time.monotonic() + timeout_s
        with self._lock:
            self._check_failure()
            while not self._closing and caller.is_active() and (left := end - time.monotonic()) > 0:
                self._over.wait(left)
                self._check_failure()
            return self._closing

    def close(self) -> None:
        """Wake all waiting threads, because this rank shuts down."""
        self._closing = True
        self._wake_all()

    def _check_failure(self) -> None:
        if self._failure_state.failure is not None:
            raise PullRefused(self._failure_state.failure)

    def _wake_all(self) -> None:
        with self._lock:
            for condition in (self._changed, self._all_pulled, self._over):
                condition.notify_all()
