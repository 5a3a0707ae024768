"""The ranks that map one segment: what they run together, and how they fail together."""

import ctypes
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from ringtrain import timeline
from ringtrain.communicators.numbers import inside_number
from ringtrain.communicators.shm.native import Addresses, NativeChannel, ShmResult, ShortJob, Work
from ringtrain.communicators.shm.segment import Segment
from ringtrain.kernels.update import ChunkUpdate
from ringtrain.reduction.fold import Flat
from ringtrain.reduction.ops import ReduceOp
from ringtrain.wire.failure import WorldFailure
from ringtrain.wire.signature import Signature
from ringtrain.world.membership import Membership
from ringtrain.world.reports import Activity, Closed, Stalled

# Between what stands for a signature and where its buffer lies.
_ARENA: Final = b"\0arena "
_KEPT_JOBS: Final = 256


class Arena:
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


class SharedGroup:
    """Ranks `ranks` of one host, this one at `position`. `suspects`: all ranks that may keep them waiting.

    Who is lost and who is to blame is found out by the membership, over the network, as for any other collective.
    """

    def __init__(
        self,
        member: Membership,
        process_set: int,
        ranks: tuple[int, ...],
        suspects: tuple[int, ...],
        channel: NativeChannel,
        segment: Segment,
    ) -> None:
        self.ranks = ranks
        self.position = ranks.index(member.ring.rank)
        self._suspects = tuple(rank for rank in suspects if rank != member.ring.rank)
        self._member = member
        self._process_set = inside_number(process_set)
        self._channel = channel
        self._segment = segment
        self._sequence = 0
        self.arenas: list[Arena] = []
        self._short_jobs: dict[tuple[bytes, int, Any, ReduceOp], ShortJob] = {}
        member.failure_state.on_reached(channel.stop)

    def run(self, what: Signature, work: Work) -> None:
        """Do `work` on all ranks. Raises, on all of them, MismatchError where `what` differs, and PeerLost."""
        compared, addresses = what.compared(), None
        if self.arenas and not _gathers_elsewhere(work):
            compared, addresses = self._with_offset(compared, work.source)
        timeout_s = self._member.ring.stall_timeout_s
        self._meet(what, work.source.nbytes, lambda: self._channel.run(compared, work, timeout_s, addresses))

    def short_job(self, what: Signature, like: Flat, op: ReduceOp) -> ShortJob | None:
        """What `fold_short` is to do with arrays like `like`; None for longer ones."""
        if not self._channel.is_short(like):
            return None
        kind = what.compared(), like.size, like.dtype, op
        job = self._short_jobs.get(kind)
        if job is None:
            if len(self._short_jobs) >= _KEPT_JOBS:
                self._short_jobs.clear()
            timeout_s = self._member.ring.stall_timeout_s
            job = self._short_jobs[kind] = self._channel.short_job(what.compared(), like, op, timeout_s)
        return job

    def fold_short(
        self, what: Signature, job: ShortJob, waits: AbstractContextManager[None], source: Flat, target: Flat
    ) -> None:
        """Leave the reduction of a short contiguous `source` in every rank's `target`. Raises what `run` raises.

        A rank that has to wait does so inside `waits`, and only then says what for: that takes as long as the
        reduction.
        """
        if timeline.is_active():
            self._meet(what, source.nbytes, lambda: self._channel.fold_short(job, source, target, patient=True))
            return
        offers, channel = self._member.offers, self._channel
        self._member.failure_state.check()
        self._sequence += 1
        key, started = (self._process_set, self._sequence), 0.0
        try:
            outcome = channel.fold_short(job, source, target)
            if outcome is ShmResult.DONE:
                offers.did(key, what, self._suspects)
                return
            offers.begin(key, what, self._suspects)
            started = time.monotonic()
            if outcome is ShmResult.AGAIN:
                with waits:
                    outcome = channel.go_on(job)
        except BaseException as error:  # a signal's handler raised
            self._member.give_up(self._activity(what), error)
            raise
        finally:
            if started:
                offers.end(key)
        if outcome is not ShmResult.DONE:
            self._fail(outcome, what, time.monotonic() - started)

    def can_update(self, gradients: Flat, weights: Flat) -> bool:
        """Whether `update` takes slices of these: all ranks say the same of arenas that they allocated alike."""
        return all(self._with_offset(b"", buffer)[1] is not None for buffer in (gradients, weights))

    def update(self, what: Signature, work: Work, change: ChunkUpdate) -> None:
        """Reduce `work.source` and update every rank's weights. Raises what `run` raises."""
        compared, gradients = self._with_offset(what.compared(), work.source)
        compared, weights = self._with_offset(compared, change.weights)
        assert gradients is not None, "ask can_update first"
        assert weights is not None, "ask can_update first"
        addresses, timeout_s = (gradients, weights), self._member.ring.stall_timeout_s
        self._meet(
            what, work.source.nbytes, lambda: self._channel.update(compared, work, change, timeout_s, addresses)
        )

    def adopt(self, segment: Segment) -> NDArray[np.uint8]:
        """Return this rank's part of `segment`, which all ranks map: buffers in it are reduced where they lie.

        The parts are equally long. The memory lives as long as the array and its views.
        """
        arena = Arena(np.frombuffer(segment.memory, np.uint8), self.position, len(self.ranks))
        self.arenas.append(arena)
        return arena.own

    def memory_of(self, position: int, buffer: Flat) -> Flat | None:
        """What `buffer`, from an arena, is on the rank at `position`; None for other memory."""
        for arena in self.arenas:
            if (offset := arena.offset_of(buffer)) is not None:
                return arena.part(position, offset, buffer.nbytes).view(buffer.dtype)
        return None

    def close(self) -> None:
        """Unmap the segment; ranks that wait for this one raise PeerLost.

        Calls that other threads have under way end first. The memory of one that does not end stays mapped, to the
        end of the process: unmapped, it would kill that.
        """
        self._member.failure_state.forget(self._channel.stop)
        if not self._channel.close(self._member.ring.probe_timeout_s):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))
            return
        self.arenas.clear()
        self._segment.close()

    def _meet(self, what: Signature, nbytes: int, meet: Callable[[], ShmResult]) -> None:
        self._member.failure_state.check()
        self._sequence += 1
        key = self._process_set, self._sequence
        self._member.offers.begin(key, what, self._suspects)
        started = time.monotonic()
        try:
            if timeline.is_active():
                with timeline.span(
                    what.label,
                    "shared memory",
                    bytes=nbytes,
                    set=self._process_set,
                    sequence=self._sequence,
                ):
                    outcome = meet()
            else:
                outcome = meet()
        except BaseException as error:  # a signal's handler raised
            self._member.give_up(self._activity(what), error)
            raise
        finally:
            self._member.offers.end(key)
        if outcome is not ShmResult.DONE:
            self._fail(outcome, what, time.monotonic() - started)

    def _with_offset(self, compared: bytes, buffer: Flat) -> tuple[bytes, Addresses | None]:
        """`compared`, with the offset of `buffer` in its arena, and where each rank's begins; None elsewhere."""
        for number, arena in enumerate(self.arenas):
            offset = arena.offset_of(buffer)
            if offset is not None:
                return compared + _ARENA + f"{number} {offset}".encode(), [base + offset for base in arena.bases]
        return compared, None

    def _fail(self, outcome: ShmResult, what: Signature, waited_s: float) -> NoReturn:
        """Report what happened, and raise what the world decides."""
        activity, monitor = self._activity(what), self._member.monitor
        blamed = self.ranks[self._channel.blamed]
        if self._member.left:
            self._member.raise_failure(activity)
        if outcome is ShmResult.LEFT:
            monitor.report(Closed(blamed, "", activity))
        elif outcome is ShmResult.MISMATCH:
            monitor.report(self._mismatch(what))
        elif outcome is ShmResult.TIMEOUT:
            others = [rank for rank in self._suspects if rank != blamed]
            monitor.report(Stalled((blamed, *others), waited_s, activity))
        self._member.raise_failure(activity)

    def _mismatch(self, what: Signature) -> WorldFailure:
        position = self._channel.blamed
        theirs = self._channel.signature_of(position).partition(_ARENA)[0]
        return self._member.mismatch((self._process_set, self._sequence), what, self.ranks[position], theirs)

    def _activity(self, what: Signature) -> Activity:
        return self._member.activity((self._process_set, self._sequence), what)


def _gathers_elsewhere(work: Work) -> bool:
    return work.gathered is not None and work.gathered.ctypes.data != work.source.ctypes.data
