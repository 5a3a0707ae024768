"""Group of ranks that map one shared-memory segment: its collectives, its barriers and its failure."""

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

# Separator between the compared signature and the location of its buffer.
_ARENA: Final = b"\0arena "


class ShmArena:
    """Shared memory in which `allocate` places buffers: one equally long part for each rank, mapped by all ranks."""

    def __init__(self, whole: NDArray[np.uint8], position: int, size: int) -> None:
        length = len(whole) // size
        self._whole, self._length = whole, length
        self.own = self.part(position, 0, length)
        self.bases = [whole.ctypes.data + p * length for p in range(size)]
        self._start = self.bases[position]

    def part(self, position: int, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Return `nbytes` bytes, beginning at `offset`, of the part of the rank at `position`."""
        begin = position * self._length + offset
        return self._whole[begin : begin + nbytes]

    def offset_of(self, buffer: Flat) -> int | None:
        """Return the offset of `buffer` in this rank's part; None if it is not in this part."""
        offset = int(buffer.ctypes.data) - self._start
        return offset if offset >= 0 and offset + buffer.nbytes <= len(self.own) else None


class ShmMappedBuffer:
    """Buffers of all ranks of a group, mapped by this process, in `places` by position.

    As a context it has a barrier at entry and at exit, after which all writes to each other's buffer are visible.
    """

    def __init__(self, group: "ShmRankGroup", what: WireSignature, buffer: Flat, places: list[Flat]) -> None:
        self.places = places
        self._group = group
        self._what = what
        self._buffer = buffer

    def __enter__(self) -> None:
        self._group.barrier_function(self._what, self._buffer)(True)

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self._group.barrier_function(self._what, self._buffer)(True)


class ShmRankGroup:
    """Ranks of one host that run collectives in shared memory. `suspects`: ranks to check if a wait takes too long.

    The membership finds lost ranks and the cause over the network, as for any other collective.
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
        self._short: Any = None  # object of compiled code
        member.failure_state.on_reached(channel.stop)

    def run(self, what: WireSignature, work: ShmCollective) -> None:
        """Run `work`. Raises on all ranks: MismatchError if `what` differs, PeerLost if a rank is lost."""
        compared, addresses = what.compared, None
        if self.arenas and not _gathers_outside_segment(work):
            compared, addresses = self._with_offset(compared, work.source)
        timeout_s = self._member.ring.stall_timeout_s
        self._run_on_all(what, work.source.nbytes, lambda: self._channel.run(compared, work, timeout_s, addresses))

    def short_allreduce(
        self, meaning: Callable[[Any, ReduceOp, str | None], WireSignature | None], turn: SharedCommunicatorTurn
    ) -> ShortAllreduce | None:
        """Return the fast allreduce of compiled code, as declared in `ShortReducer`; None if it is not compiled."""

        def find(x: NDArray[Any], op: ReduceOp, name: str | None) -> tuple[int, ShmShortReduction] | None:
            reduces = op if isinstance(op, ReduceOp) else None  # a barrier has none
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
            if self._member.failure_state.failure is None:  # a signal handler has raised
                self._member.give_up(self._activity(job.what), error)

        self._short = self._channel.short_calls(turn, lambda: timeline.active is not None, find, go_on, give_up)
        if self._short is None:
            return None
        self._member.offers.follow(self._process_set, self._last_short)
        allreduce: ShortAllreduce = self._short.allreduce
        return allreduce

    def _go_on(self, job: ShmShortReduction, outcome: ShmResult) -> None:
        """Wait for the other ranks of a short reduction that compiled code began, or raise its failure."""
        offers, key, started = self._member.offers, self._key(), time.monotonic()
        offers.begin(key, job.what, self._suspects)
        try:
            outcome = self._channel.go_on(job, outcome)
        finally:
            offers.end(key)
        if outcome is not ShmResult.DONE:
            self._fail(outcome, job.what, time.monotonic() - started)

    def _last_short(self) -> BegunCollective | None:
        """Return the last collective that compiled code completed without waiting; None if there was none."""
        if (last := self._short.last()) is None:
            return None
        number, ended, job = last
        return BegunCollective(number, job.what, self._suspects, ended, None)

    def can_update(self, gradients: Flat, weights: Flat) -> bool:
        """Return whether `gradients` and `weights` are in shared memory, which `update` needs. The same on all
        ranks."""
        return all(self._with_offset(b"", buffer)[1] is not None for buffer in (gradients, weights))

    def update(self, what: WireSignature, work: ShmCollective, change: ChunkUpdate) -> None:
        """Reduce `work.source` and update the weights on every rank. Raises the same errors as `run`."""
        compared, gradients = self._with_offset(what.compared, work.source)
        compared, weights = self._with_offset(compared, change.weights)
        assert gradients is not None, "call can_update first"
        assert weights is not None, "call can_update first"
        addresses, timeout_s = (gradients, weights), self._member.ring.stall_timeout_s
        self._run_on_all(
            what, work.source.nbytes, lambda: self._channel.update(compared, work, change, timeout_s, addresses)
        )

    def barrier_function(self, what: WireSignature, *buffers: Flat) -> Callable[[bool], bool]:
        """Return a function that runs one barrier, after which all ranks see each other's writes to shared buffers.

        The function takes one bool, whether to wait, and returns whether all ranks have arrived. If it returns False,
        call it again before any other collective. All ranks must run the barrier, at any place and with any number of
        calls. The function raises the same errors as `run`.
        """
        compared = what.compared
        for buffer in buffers:
            compared, _ = self._with_offset(compared, buffer)
        job = self._channel.barrier_job(compared, buffers[0], self._member.ring.stall_timeout_s)
        return lambda waits: self._run_on_all(what, 0, lambda: self._channel.barrier(job, waits))

    def adopt(self, segment: ShmSegment) -> NDArray[np.uint8]:
        """Add `segment`, which all ranks map, as memory for buffers, and return this rank's part of it.

        The parts are equally long. The memory lives as long as the array and its views.
        """
        arena = ShmArena(np.frombuffer(segment.memory, np.uint8), self.position, len(self.ranks))
        self.arenas.append(arena)
        if self._short is not None:  # from now on ranks also compare the location of an array
            self._short.forget()
        return arena.own

    def memory_of(self, position: int, buffer: Flat) -> Flat | None:
        """Return the buffer of the rank at `position` that was allocated with `buffer`; None if that is not shared
        memory."""
        for arena in self.arenas:
            if (offset := arena.offset_of(buffer)) is not None:
                return arena.part(position, offset, buffer.nbytes).view(buffer.dtype)
        return None

    def mapped(self, what: WireSignature, buffer: Flat) -> "ShmMappedBuffer | None":
        """Return a context with all ranks' counterparts of a shared `buffer`; None if it is not shared memory."""
        places = self.memories_of(buffer)
        return ShmMappedBuffer(self, what, buffer, places) if places else None

    def memories_of(self, buffer: Flat) -> list[Flat]:
        """Return all ranks' counterparts of a shared `buffer`, by position; empty if it is not shared memory."""
        found = [self.memory_of(place, buffer) for place in range(len(self.ranks))]
        return [memory for memory in found if memory is not None]

    def use_arenas_of(self, other: "ShmRankGroup") -> None:
        """Use the shared buffers of `other`, a group of the same ranks, and those that it allocates later."""
        self.arenas = other.arenas

    def close(self) -> None:
        """Unmap the segment; ranks that wait for this one raise PeerLost.

        Calls in other threads end first. If one does not end, the memory stays mapped until the process ends, because
        an access to unmapped memory would kill the process.
        """
        self._member.failure_state.forget(self._channel.stop)
        self._member.offers.follow(self._process_set, None)
        if not self._channel.close(self._member.ring.probe_timeout_s):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))
            return
        self.arenas = []  # another group may use the list
        self._segment.close()

    def _run_on_all(self, what: WireSignature, nbytes: int, call: Callable[[], ShmResult]) -> bool:
        """Run `call`. Return True if all ranks have arrived, False if `call` did not wait for all of them.

        `what`: signature of the collective, for messages and the timeline. `nbytes`: size of the tensor, for the
        timeline.
        """
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
                    outcome = call()
            else:
                outcome = call()
        except BaseException as error:  # a signal handler has raised
            self._member.give_up(self._activity(what), error)
            raise
        finally:
            self._member.offers.end(key)
        if outcome not in (ShmResult.DONE, ShmResult.AGAIN):
            self._fail(outcome, what, time.monotonic() - started)
        return outcome is ShmResult.DONE

    def _with_offset(self, compared: bytes, buffer: Flat) -> tuple[bytes, Addresses | None]:
        """Return `compared` extended by the offset of `buffer` in shared memory, and the address of each rank's buffer.

        For a buffer outside the arenas return `compared` unchanged and None.
        """
        for number, arena in enumerate(self.arenas):
            offset = arena.offset_of(buffer)
            if offset is not None:
                return compared + _ARENA + f"{number} {offset}".encode(), [base + offset for base in arena.bases]
        return compared, None

    def _fail(self, outcome: ShmResult, what: WireSignature, waited_s: float) -> NoReturn:
        """Report why a collective has not completed, and raise the error on which all ranks agree."""
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
        """Return process set and number of the collective in progress, or of the next one if none is in progress."""
        return self._process_set, self._channel.collectives + 1


def _gathers_outside_segment(work: ShmCollective) -> bool:
    return work.gathered is not None and work.gathered.ctypes.data != work.source.ctypes.data


class ShmLoneRank:
    """Replacement of a `ShmRankGroup` for a pod with one rank, which needs no barriers."""

    position: Final = 0

    def __init__(self, rank: int) -> None:
        self.ranks = (rank,)

    def run(self, what: WireSignature, work: ShmCollective) -> None:
        """Copy this rank's contribution to `work.partial`, if set; nothing else is to be done for one rank."""
        if work.partial is not None:
            ((start, end),) = work.chunks
            work.partial[...] = work.source[start:end]

    def mapped(self, what: WireSignature, buffer: Flat) -> None:
        """Return None, because no other rank can read `buffer`."""

    def close(self) -> None:
        """Do nothing: there are no resources."""
