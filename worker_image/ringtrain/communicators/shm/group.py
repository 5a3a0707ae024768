"""The ranks that map one segment: what they run together, and how they fail together."""

import ctypes
import time
from collections.abc import Callable
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from ringtrain import timeline
from ringtrain.communicators.numbers import inside_number
from ringtrain.communicators.shm.native import Addresses, NativeChannel, ShmResult, Work
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
        self._arenas: list[Arena] = []
        member.failure_state.on_reached(channel.stop)

    def run(self, what: Signature, work: Work) -> None:
        """Do `work` on all ranks. Raises, on all of them, MismatchError where `what` differs, and PeerLost."""
        compared, addresses = what.compared(), None
        if self._arenas and not _gathers_elsewhere(work):
            compared, addresses = self._with_offset(compared, work.source)
        timeout_s = self._member.ring.stall_timeout_s
        self._meet(what, work.source, lambda: self._channel.run(compared, work, timeout_s, addresses))

    def fold_short(self, what: Signature, source: Flat, target: Flat, op: ReduceOp) -> bool:
        """Leave the reduction of a short `source` in every rank's `target`. Raises what `run` raises.

        Returns whether it was one. Where ranks share arenas it is not: there they compare where it lies, too.
        """
        if self._arenas or not self._channel.is_short(source):
            return False
        compared, timeout_s = what.compared(), self._member.ring.stall_timeout_s
        self._meet(what, source, lambda: self._channel.fold_short(compared, source, target, op, timeout_s))
        return True

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
        self._meet(what, work.source, lambda: self._channel.update(compared, work, change, timeout_s, addresses))

    def adopt(self, segment: Segment) -> NDArray[np.uint8]:
        """Return this rank's part of `segment`, which all ranks map: buffers in it are reduced where they lie.

        The parts are equally long. The memory lives as long as the array and its views.
        """
        arena = Arena(np.frombuffer(segment.memory, np.uint8), self.position, len(self.ranks))
        self._arenas.append(arena)
        return arena.own

    def memory_of(self, position: int, buffer: Flat) -> Flat | None:
        """What `buffer`, from an arena, is on the rank at `position`; None for other memory."""
        for arena in self._arenas:
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
        self._arenas.clear()
        self._segment.close()

    def _meet(self, what: Signature, source: Flat, meet: Callable[[], ShmResult]) -> None:
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
                    bytes=source.nbytes,
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
        for number, arena in enumerate(self._arenas):
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
