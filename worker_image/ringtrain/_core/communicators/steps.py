"""Building blocks of exchanges between all ranks of a process set: calls, segments, contributions and results."""

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ringtrain._core.reduction.cuts import Bounds, segments_at
from ringtrain._core.reduction.fold import Flat
from ringtrain._core.transport.base import TransportCaller
from ringtrain._core.wire.messages import WireFrame, WireStep
from ringtrain._core.wire.signature import WireSignature, with_layout
from ringtrain._core.world.call import CollectiveKey, FramesFor, WorldCall
from ringtrain._core.world.membership import WorldMembership


class ExchangeScratchBuffers:
    """Buffers for received segments, reused because new memory costs a page fault every 4 KiB."""

    def __init__(self) -> None:
        self._buffers: dict[int, NDArray[np.uint8]] = {}

    def like(self, segment: Flat, number: int) -> Flat:
        """Return buffer `number` as an array with length and dtype of `segment`. Its content is undefined."""
        buffer = self._buffers.get(number)
        if buffer is None or buffer.nbytes < segment.nbytes:
            buffer = self._buffers[number] = np.empty(segment.nbytes, np.uint8)
        return buffer[: segment.nbytes].view(segment.dtype)


class ExchangeSteps:
    """Factory of one rank's exchanges in a process set. Counts them, so that ranks can match their calls."""

    def __init__(self, member: WorldMembership, process_set: int, ranks: tuple[int, ...], segment_bytes: int) -> None:
        self._member = member
        self._process_set = process_set
        self._sequence = 0
        self._scratch = ExchangeScratchBuffers()
        self.segment_bytes = segment_bytes
        self.ranks = ranks
        self.position = ranks.index(member.ring.rank)
        # The next position first: if all began with the same one, all would wait for its link.
        self.others = tuple((self.position + shift) % len(ranks) for shift in range(1, len(ranks)))
        self._other_ranks = tuple(rank for rank in ranks if rank != member.ring.rank)

    def continue_at(self, sequence: int) -> None:
        """Set the number of the next collective to `sequence`."""
        self._sequence = sequence - 1

    def call(
        self, what: WireSignature, bounds: Bounds, frames_for: FramesFor, total_bytes: int, is_span: bool = True
    ) -> WorldCall:
        """Begin the next collective with all ranks. They compare `bounds` in addition to the signature `what`.

        `frames_for`, `total_bytes`, `is_span`: see `call_among`.
        """
        what = with_layout(what, (self.segment_bytes, *what.layout, *bounds))
        return self.call_among(None, what, frames_for, total_bytes, is_span)

    def call_among(
        self,
        peers: tuple[int, ...] | None,
        what: WireSignature,
        frames_for: FramesFor,
        total_bytes: int,
        is_span: bool = True,
        takers: tuple[int, ...] | None = None,
    ) -> WorldCall:
        """Begin the next collective: read from `peers` (default: all others), send to `takers` (default: `peers`).

        `frames_for`: returns the frames for a rank. `total_bytes`: size of the tensor, which extends the time limit.
        `is_span`: whether the timeline records the collective.
        """
        self._sequence += 1
        number = (self._process_set, self._sequence)
        peers = self._other_ranks if peers is None else peers
        key = CollectiveKey(number, peers, peers if takers is None else takers, self._other_ranks, is_span)
        return WorldCall(self._member, key, what, frames_for, total_bytes)

    def cut(self, bounds: Bounds, like: Flat) -> list[list[slice]]:
        return segments_at(bounds, max(1, self.segment_bytes // like.itemsize))

    def parts_like(self, own: Flat) -> list[Flat]:
        """Return a buffer for each rank's contribution to a segment, in the order of the set's ranks; for this rank
        return `own`.

        The content of the other buffers is undefined.
        """
        like = self._scratch.like
        return [own if position == self.position else like(own, position) for position in range(len(self.ranks))]

    def contributions(self, call: WorldCall, segment: int, own: Flat, keep_all: bool) -> Iterator[Flat]:
        """Yield each rank's contribution to segment `segment` of this rank's chunk, in rank order, read when requested.

        `own`: this rank's contribution. `keep_all`: whether all contributions remain valid until the next segment. If
        not, only the last two are valid.
        """
        for position, rank in enumerate(self.ranks):
            if position == self.position:
                yield own
                continue
            part = self._scratch.like(own, position if keep_all else position % 2)
            call.read(rank, WireStep.CONTRIBUTION, segment, part)
            yield part

    def read_results(self, call: WorldCall, cuts: list[list[slice]], segment: int, buffer: Flat) -> None:
        for position in self.others:
            if segment < len(cuts[position]):
                call.read(self.ranks[position], WireStep.RESULT, segment, buffer[cuts[position][segment]])

    def offer(self, call: WorldCall, frames: list[WireFrame], frame: WireFrame) -> None:
        frames.append(frame)
        call.offer_changed()

    def results(
        self, call: WorldCall, frames: list[WireFrame], count: int, caller: TransportCaller
    ) -> Iterator[WireFrame]:
        """Yield the first `count` of `frames`, waiting until each has been added to the list."""
        for index in range(count):
            call.wait_until(partial(_is_longer_than_segment, frames, index), caller)
            yield frames[index]


def _is_longer_than_segment(frames: list[WireFrame], index: int) -> bool:
    return index < len(frames)
