"""The ranks that map one segment: what they run together, and how they fail together."""

import ctypes
import time
from collections.abc import Callable
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from ringtrain import timeline
from ringtrain._core.communicators.base import SharedCommunicatorTurn, ShortAllreduce
from ringtrain._core.communicators.numbers import inside_communicator_number
from ringtrain._core.communicators.shm.native import (
    Addresses,
    ShmCollective,
    ShmNativeChannel,
    ShmResult,
    ShmShortReduction,
)
from ringtrain._core.communicators.shm.segment import ShmSegment
from ringtrain._core.kernels.update import ChunkUpdate
from ringtrain._core.reduction.fold import Flat
from ringtrain._core.reduction.ops import ReduceOp
from ringtrain._core.wire.failure import WorldFailure
from ringtrain._core.wire.signature import WireSignature
from ringtrain._core.world.failure_state import PeerClosed, PeersStalled, RankActivity
from ringtrain._core.world.membership import WorldMembership
from ringtrain._core.world.offers import BegunCollective, Key
from ringtrain.step_time import REDUCTION

# Between what stands for a signature and where its buffer lies.
_ARENA: Final = b"\0arena "


class ShmArena:
    """Memory that all ranks map, one part each."""

    def __init__(self, whole: NDArray[np.uint8], position: int, size: int) -> None:
        length = len(whole) // size
        self._whole, self._length = whole, length
        self.own = self.part(position, 0, length)
        self.bases = [whole.ctypes.data + p * length for p in range(size)]
        self._start = self.bases[position]

    def part(self, position: int, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Bytes from `offset` on of the part of the rank at `position`."""
        begin = position * self._length + offset
        return self._whole[begin : begin + nbytes]

    def offset_of(self, buffer: Flat) -> int | None:
        """Where `buffer` begins in the own part; None if it is elsewhere."""
        offset = int(buffer.ctypes.data) - self._start
        return offset if offset >= 0 and offset + buffer.nbytes <= len(self.own) else None


class ShmMappedBuffer:
    """`buffer` of each rank that maps it, in `places`, by place. A context: entering it waits until all have come,
    leaving it until all are done. What they wrote to each other's buffer is here then."""

    def __init__(self, group: "ShmRankGroup", what: WireSignature, buffer: Flat, places: list[Flat]) -> None:
        self.places = places
        self._group = group
        self._what = what
        self._buffer = buffer

    def __enter__(self) -> None:
        self._group.meeting(self._what, self._buffer)(True)

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self._group.meeting(self._what, self._buffer)(True)


class ShmRankGroup:
    """Ranks `ranks` of one host, this one at `position`. `suspects`: all ranks that may keep them waiting.

    Who is lost and who is to blame is found out by the membership, over the network, as for any other collective.
    """

    def __init__(
        self,
        member: WorldMembership,
        process_set: int,
        ranks: tuple[int, ...],
        suspects: tuple[int, ...],
        channel: ShmNativeChannel,
        segment: ShmSegment,
    ) -> None:
        self.ranks = ranks
        self.position = ranks.index(member.ring.rank)
        self._suspects = tuple(rank for rank in suspects if rank != member.ring.rank)
        self._member = member
        self._process_set = inside_communicator_number(process_set)
        self._channel = channel
        self._segment = segment
        self.arenas: list[ShmArena] = []
        self._short: Any = None  # of compiled code
        member.failure_state.on_reached(channel.stop)

    def run(self, what: WireSignature, work: ShmCollective) -> None:
        """Do `work` on all ranks. Raises, on all of them, MismatchError where `what` differs, and PeerLost."""
        compared, addresses = what.compared, None
        if self.arenas and not _gathers_outside_segment(work):
            compared, addresses = self._with_offset(compared, work.source)
        timeout_s = self._member.ring.stall_timeout_s
        self._meet(what, work.source.nbytes, lambda: self._channel.run(compared, work, timeout_s, addresses))

    def short_allreduce(
        self, meaning: Callable[[Any, ReduceOp, str | None], WireSignature | None], turn: SharedCommunicatorTurn
    ) -> ShortAllreduce | None:
        """As of `communicators.base.ShortReducer`. Other ranks learn of its collectives when they ask."""

        def find(x: NDArray[Any], op: ReduceOp, name: str | None) -> tuple[int, ShmShortReduction] | None:
            reduces = op if isinstance(op, ReduceOp) else None  # as in a barrier
            lies_anywhere = reduces is None or not self.arenas
            what = meaning(x, op, name) if lies_anywhere else None
            if what is None or not self._channel.is_short(x):
                return None
            job = self._channel.short_job(what, x, reduces, self._member.ring.stall_timeout_s)
            return ctypes.addressof(job.struct), job

        def go_on(job: ShmShortReduction, outcome: int) -> None:
            with turn.counted(), REDUCTION:
                self._go_on(job, ShmResult(outcome))

        def give_up(job: ShmShortReduction, error: BaseException) -> None:
            if self._member.failure_state.failure is None:  # a signal's handler raised
                self._member.give_up(self._activity(job.what), error)

        self._short = self._channel.short_calls(turn, lambda: timeline.active is not None, find, go_on, give_up)
        if self._short is None:
            return None
        self._member.offers.follow(self._process_set, self._last_short)
        allreduce: ShortAllreduce = self._short.allreduce
        return allreduce

    def _go_on(self, job: ShmShortReduction, outcome: ShmResult) -> None:
        """Wait for other ranks, or raise what happened instead of a reduction."""
        offers, key, started = self._member.offers, self._key(), time.monotonic()
        offers.begin(key, job.what, self._suspects)
        try:
            outcome = self._channel.go_on(job, outcome)
        finally:
            offers.end(key)
        if outcome is not ShmResult.DONE:
            self._fail(outcome, job.what, time.monotonic() - started)

    def _last_short(self) -> BegunCollective | None:
        """The last collective in which nobody had to wait."""
        if (last := self._short.last()) is None:
            return None
        number, ended, job = last
        return BegunCollective(number, job.what, self._suspects, ended, None)

    def can_update(self, gradients: Flat, weights: Flat) -> bool:
        """Whether `update` takes slices of these: all ranks say the same of arenas that they allocated alike."""
        return all(self._with_offset(b"", buffer)[1] is not None for buffer in (gradients, weights))

    def update(self, what: WireSignature, work: ShmCollective, change: ChunkUpdate) -> None:
        """Reduce `work.source` and update every rank's weights. Raises what `run` raises."""
        compared, gradients = self._with_offset(what.compared, work.source)
        compared, weights = self._with_offset(compared, change.weights)
        assert gradients is not None, "ask can_update first"
        assert weights is not None, "ask can_update first"
        addresses, timeout_s = (gradients, weights), self._member.ring.stall_timeout_s
        self._meet(what, work.source.nbytes, lambda: self._channel.update(compared, work, change, timeout_s, addresses))

    def meeting(self, what: WireSignature, *buffers: Flat) -> Callable[[bool], bool]:
        """Return what tells the others that this rank has come, and whether all have: what they wrote to each
        other's arenas before is here then.

        It takes whether to wait for them. If it has not, nothing else may be done here before it has. All ranks
        have a meeting; where they come and how often they ask is theirs. It raises what `run` raises.
        """
        compared = what.compared
        for buffer in buffers:
            compared, _ = self._with_offset(compared, buffer)
        job = self._channel.meeting(compared, buffers[0], self._member.ring.stall_timeout_s)
        return lambda waits: self._meet(what, 0, lambda: self._channel.meet(job, waits))

    def adopt(self, segment: ShmSegment) -> NDArray[np.uint8]:
        """Return this rank's part of `segment`, which all ranks map: buffers in it are reduced where they lie.

        The parts are equally long. The memory lives as long as the array and its views.
        """
        arena = ShmArena(np.frombuffer(segment.memory, np.uint8), self.position, len(self.ranks))
        self.arenas.append(arena)
        if self._short is not None:  # from now on ranks compare where an array lies, too
            self._short.forget()
        return arena.own

    def memory_of(self, position: int, buffer: Flat) -> Flat | None:
        """What `buffer`, from an arena, is on the rank at `position`; None for other memory."""
        for arena in self.arenas:
            if (offset := arena.offset_of(buffer)) is not None:
                return arena.part(position, offset, buffer.nbytes).view(buffer.dtype)
        return None

    def mapped(self, what: WireSignature, buffer: Flat) -> "ShmMappedBuffer | None":
        """What the ranks here can read and write of each other's `buffer`; None where it lies in no arena."""
        places = self.memories_of(buffer)
        return ShmMappedBuffer(self, what, buffer, places) if places else None

    def memories_of(self, buffer: Flat) -> list[Flat]:
        """What `buffer`, from an arena, is on each rank, by place; none for other memory."""
        found = [self.memory_of(place, buffer) for place in range(len(self.ranks))]
        return [memory for memory in found if memory is not None]

    def use_arenas_of(self, other: "ShmRankGroup") -> None:
        """Know what a group of the same ranks has adopted, and what it will adopt."""
        self.arenas = other.arenas

    def close(self) -> None:
        """Unmap the segment; ranks that wait for this one raise PeerLost.

        Calls that other threads have under way end first. The memory of one that does not end stays mapped, to the
        end of the process: unmapped, it would kill that.
        """
        self._member.failure_state.forget(self._channel.stop)
        self._member.offers.follow(self._process_set, None)
        if not self._channel.close(self._member.ring.probe_timeout_s):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))
            return
        self.arenas = []  # another group may use the list
        self._segment.close()

    def _meet(self, what: WireSignature, nbytes: int, meet: Callable[[], ShmResult]) -> bool:
        """Return whether all have met; False: this rank did not wait for the others."""
        self._member.failure_state.check()
        key = self._key()
        self._member.offers.begin(key, what, self._suspects)
        started = time.monotonic()
        try:
            if timeline.active is not None:
                with timeline.span(
                    what.label,
                    "shared memory",
                    bytes=nbytes,
                    set=self._process_set,
                    sequence=key[1],
                ):
                    outcome = meet()
            else:
                outcome = meet()
        except BaseException as error:  # a signal's handler raised
            self._member.give_up(self._activity(what), error)
            raise
        finally:
            self._member.offers.end(key)
        if outcome not in (ShmResult.DONE, ShmResult.AGAIN):
            self._fail(outcome, what, time.monotonic() - started)
        return outcome is ShmResult.DONE

    def _with_offset(self, compared: bytes, buffer: Flat) -> tuple[bytes, Addresses | None]:
        """`compared`, with the offset of `buffer` in its arena, and where each rank's begins; None elsewhere."""
        for number, arena in enumerate(self.arenas):
            offset = arena.offset_of(buffer)
            if offset is not None:
                return compared + _ARENA + f"{number} {offset}".encode(), [base + offset for base in arena.bases]
        return compared, None

    def _fail(self, outcome: ShmResult, what: WireSignature, waited_s: float) -> NoReturn:
        """Report what happened, and raise what the world decides."""
        activity, monitor = self._activity(what), self._member.monitor
        blamed = self.ranks[self._channel.blamed]
        if self._member.left:
            self._member.raise_failure(activity)
        if outcome is ShmResult.LEFT:
            monitor.report(PeerClosed(blamed, "", activity))
        elif outcome is ShmResult.MISMATCH:
            monitor.report(self._mismatch(what))
        elif outcome is ShmResult.TIMEOUT:
            others = [rank for rank in self._suspects if rank != blamed]
            monitor.report(PeersStalled((blamed, *others), waited_s, activity))
        self._member.raise_failure(activity)

    def _mismatch(self, what: WireSignature) -> WorldFailure:
        position = self._channel.blamed
        theirs = self._channel.signature_of(position).partition(_ARENA)[0]
        return self._member.mismatch(self._key(), what, self.ranks[position], theirs)

    def _activity(self, what: WireSignature) -> RankActivity:
        return self._member.activity(self._key(), what)

    def _key(self) -> Key:
        """Of the collective that is under way, or begins now."""
        return self._process_set, self._channel.collectives + 1


def _gathers_outside_segment(work: ShmCollective) -> bool:
    return work.gathered is not None and work.gathered.ctypes.data != work.source.ctypes.data


class ShmLoneRank:
    """In the place of a `ShmRankGroup`. It meets nobody: what differs between ranks is found between pods."""

    position: Final = 0

    def __init__(self, rank: int) -> None:
        self.ranks = (rank,)

    def run(self, what: WireSignature, work: ShmCollective) -> None:
        """Copy this rank's contribution to `work.partial`; what is gathered is in its place already."""
        if work.partial is not None:
            ((start, end),) = work.chunks
            work.partial[...] = work.source[start:end]

    def mapped(self, what: WireSignature, buffer: Flat) -> None:
        """Nobody else is here who could read `buffer`."""

    def close(self) -> None:
        """There is nothing to give back."""
