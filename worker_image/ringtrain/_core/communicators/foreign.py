"""Calls of a foreign collective library (such as gloo or NCCL) that end with an error if this world loses a rank."""

import time
from collections.abc import Callable
from typing import Any, Final, NoReturn

import numpy as np

from ringtrain._core.communicators.base import Communicator
from ringtrain._core.communicators.numbers import foreign_communicator_number
from ringtrain._core.wire.signature import WireSignature
from ringtrain._core.wire.values import decode_value, encode_value
from ringtrain._core.world.failure_state import PeerClosed, PeersStalled, RankActivity
from ringtrain._core.world.membership import WorldMembership

# The library's own threads do the work: poll first without a pause, then with one that uses no core.
_EAGER_S: Final = 1e-3
_PAUSE_S: Final = 50e-6


class ForeignCommunicatorCalls:
    """One process set's calls of a foreign collective library. `number`: number of the process set's communicator.

    All ranks of the set make the same calls in the same order. A call that can't end because a peer is lost raises
    PeerLost. The memory of such a call is never freed, because the library may still write to it.
    """

    def __init__(self, member: WorldMembership, number: int, ranks: tuple[int, ...]) -> None:
        self.timeout_s, self.stall_timeout_s = member.ring.timeout_s, member.ring.stall_timeout_s
        self.address = member.ring.addresses[member.ring.rank]
        self._member = member
        self._number = foreign_communicator_number(number)
        self._others = tuple(rank for rank in ranks if rank != member.ring.rank)
        self._peers = frozenset(self._others)
        self._sequence = 0
        self._abandoned: list[Any] = []

    @property
    def failed(self) -> bool:
        """Return whether this world has ended because of a failure."""
        return self._member.failure_state.failure is not None

    def run(self, name: str, call: Callable[[], Any]) -> None:
        """Start `call`, which returns an object with `is_completed()` and `wait()`, and wait until it is completed.

        Raises PeerLost, on all ranks, if a peer is lost, has shut down or is silent for too long, or if the library
        fails.
        """
        self._member.failure_state.check()
        what = WireSignature(name)
        self._sequence += 1
        key = (self._number, self._sequence)
        activity = self._member.activity(key, what)
        self._member.offers.begin(key, what, self._others)
        try:
            work = call()
            self._abandoned.append(work)
            self._wait(activity, work.is_completed)
            work.wait()
        except RuntimeError as error:
            self._failed(activity, error)
        self._abandoned.clear()
        self._member.offers.end(key)

    def _wait(self, activity: RankActivity, done: Callable[[], bool]) -> None:
        started = time.monotonic()
        one_left_at: float | None = None
        while not done():
            now = time.monotonic()
            if self._member.failure_state.failure is not None or self._member.left:
                self._member.raise_failure(activity)
            if one_left_at is None and self._member.departed_rank(self._peers) is not None:
                one_left_at = now
            # Data that a rank sent before it left may still be in flight.
            if one_left_at is not None and now - one_left_at >= self._member.ring.probe_timeout_s:
                self._report_left(activity)
                self._member.raise_failure(activity)
            if now - started >= self.stall_timeout_s:
                self._member.monitor.report(PeersStalled(self._others, now - started, activity))
                self._member.raise_failure(activity)
            if now - started > _EAGER_S:
                time.sleep(_PAUSE_S)

    def _report_left(self, activity: RankActivity) -> None:
        """Report to the monitor a peer that has shut down, if any."""
        if (departed := self._member.departed_rank(self._peers)) is not None:
            self._member.monitor.report(PeerClosed(departed, "", activity))

    def _failed(self, activity: RankActivity, error: Exception) -> NoReturn:
        """Find out why the foreign library failed, and raise that as this world's error.

        The failure detector also notices a lost peer, and a peer that has shut down is reported here.
        """
        self._member.failure_state.check()
        self._report_left(activity)
        self._member.monitor.look_for(self._others, activity, lambda peer: True)
        if not self._member.left and not self._member.failure_state.wait(self.timeout_s / 5):
            self._member.give_up(activity, error)
        self._member.raise_failure(activity)


def exchange_values(communicator: Communicator, value: Any, what: str) -> list[Any]:
    """Return the plain `value` of every rank, in the order of the communicator's ranks. `what`: description that ranks
    compare. Collective."""
    data = np.frombuffer(encode_value(value), np.uint8)
    return [decode_value(part.tobytes()) for part in communicator.all_gather_parts(WireSignature(what), data)]
