"""Collectives through shared memory, with the same contract as those over the network."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NoReturn

import numpy as np

from ringtrain.collectives.communicator import Communicator
from ringtrain.collectives.fold import Flat
from ringtrain.collectives.layout import Bounds, even_bounds
from ringtrain.collectives.ops import Op
from ringtrain.errors import RingtrainError
from ringtrain.shm.native import NativeChannel, Outcome, Work
from ringtrain.shm.segment import Segment
from ringtrain.wire.failure import Failure
from ringtrain.wire.signature import Signature, decode_signature, describe_mismatch
from ringtrain.world.membership import Membership
from ringtrain.world.monitor import Closed, Doing, Stalled

# The membership counts progress by process set: the network's are small numbers, those of shared memory are above.
FIRST_SHARED_SET: Final = 1 << 30
_NOTHING: Final = np.empty(0, np.uint8)


class SharedMemoryCommunicator:
    """A `Communicator` of ranks that all map one segment.

    Who is lost and who is to blame is found out by the membership, over the network, as for any other collective.
    What is rare or has parts of unknown length goes over `network`, after the ranks have compared what they mean.
    """

    def __init__(
        self, member: Membership, process_set: int, network: Communicator, channel: NativeChannel, segment: Segment
    ) -> None:
        self._member = member
        self._process_set = FIRST_SHARED_SET + process_set
        self._network = network
        self._channel = channel
        self._segment = segment
        self._sequence = 0
        self._nothing_bounds: Bounds = (0,) * (len(network.ranks) + 1)
        member.verdict.on_reached(channel.stop)

    @property
    def ranks(self) -> tuple[int, ...]:
        return self._network.ranks

    @property
    def position(self) -> int:
        return self._network.position

    def all_reduce(self, what: Signature, source: Flat, target: Flat, op: Op) -> None:
        bounds = even_bounds(len(source), len(self.ranks))
        own = target[bounds[self.position] : bounds[self.position + 1]]
        self._run(what, Work(bounds, source, op, own=own, gathered=target))

    def reduce_scatter(self, what: Signature, source: Flat, bounds: Bounds, target: Flat, op: Op) -> None:
        self._run(replace(what, layout=bounds), Work(bounds, source, op, own=target))

    def all_gather(self, what: Signature, buffer: Flat, bounds: Bounds) -> None:
        self._run(replace(what, layout=bounds), Work(bounds, buffer, gathered=buffer))

    def all_gather_parts(self, what: Signature, part: Flat) -> list[Flat]:
        self._compare(what, part)
        return self._network.all_gather_parts(what, part)

    def broadcast(self, what: Signature, buffer: Flat, root: int) -> None:
        """An all-gather in which only the root has a chunk."""
        bounds = tuple(0 if p <= root else len(buffer) for p in range(len(self.ranks) + 1))
        self._run(what, Work(bounds, buffer, gathered=buffer))

    def all_to_all(self, what: Signature, parts: Sequence[Flat]) -> list[Flat]:
        self._compare(what, parts[0])
        return self._network.all_to_all(what, parts)

    def barrier(self, what: Signature) -> None:
        self._compare(what, _NOTHING)

    def close(self) -> None:
        """Unmap the segment; ranks that wait for this one raise PeerLost."""
        self._member.verdict.forget(self._channel.stop)
        self._channel.close()
        self._segment.close()

    def _compare(self, what: Signature, like: Flat) -> None:
        """Return when all ranks are here and mean the same."""
        self._run(what, Work(self._nothing_bounds, like[:0]))

    def _run(self, what: Signature, work: Work) -> None:
        self._member.verdict.check()
        self._sequence += 1
        self._member.board.begin((self._process_set, self._sequence))
        started = time.monotonic()
        try:
            outcome = self._channel.run(what.encode(), work, self._member.place.pull_timeout_s)
        except BaseException as error:  # a signal's handler raised
            self._give_up(self._doing(what), error)
            raise
        if outcome is not Outcome.DONE:
            self._fail(outcome, what, time.monotonic() - started)

    def _fail(self, outcome: Outcome, what: Signature, waited_s: float) -> NoReturn:
        """Report what happened, and raise what the world decides."""
        doing, monitor = self._doing(what), self._member.monitor
        blamed = self.ranks[self._channel.blamed]
        if outcome is Outcome.LEFT:
            monitor.report(Closed(blamed, "", doing))
        elif outcome is Outcome.MISMATCH:
            monitor.report(Failure("mismatch", self._describe_mismatch(what)))
        elif outcome is Outcome.TIMEOUT:
            others = [rank for rank in self.ranks if rank not in (blamed, self._member.place.rank)]
            monitor.report(Stalled((blamed, *others), waited_s, doing))
        self._await_verdict()
        self._member.verdict.check()
        raise RingtrainError(f"{doing.label} failed, and no reason was found in time")

    def _give_up(self, doing: Doing, error: BaseException) -> None:
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        rank = self._member.place.rank
        self._member.monitor.report(Failure("lost", f"rank {rank} left {doing.label} because of {reason}", rank))
        self._await_verdict()

    def _await_verdict(self) -> None:
        self._member.verdict.wait(self._member.place.timeout_s / 5)
        self._member.monitor.await_announced(self._member.place.timeout_s / 10)

    def _describe_mismatch(self, what: Signature) -> str:
        position = self._channel.blamed
        theirs = self._channel.signature_of(position)
        mine, other = self._member.place.rank, self.ranks[position]
        if theirs is None or theirs == what.encode():
            label = f"{what.label} #{self._sequence}"
            return f"{label}: ranks {mine} and {other} mean different things; every rank must make the same calls"
        return describe_mismatch(self._sequence, (mine, what), (other, decode_signature(theirs)))

    def _doing(self, what: Signature) -> Doing:
        names = what.label.removeprefix(what.kind)
        return Doing(f"{what.kind} #{self._sequence}{names}", self._process_set, self._sequence)
