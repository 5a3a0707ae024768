"""Collectives by direct exchange between all pairs of ranks.

In step s of a reduce-scatter rank r sends its contribution to chunk (r + s) % N to rank (r + s) % N, which owns that
chunk and folds all contributions in rank order; in the all-gather each rank reads every chunk from its owner. That is
2(N - 1) steps in which each rank sends 2(N - 1)/N of the payload, as in the neighbour ring of Patarasuk & Yuan 2009,
but no rounded partial sum is sent and the order of the fold does not depend on the chunk. See
docs/decisions/0001-ring-shift-exchange.md. `doubling.py` handles short tensors of at least four ranks, and long
all-gathers of many. Reductions of more than `hierarchical.DIRECT_RANKS_MOST` ranks are in `hierarchical`.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ringtrain._core.communicators.broadcast import PodBroadcast, PodBroadcastRoute
from ringtrain._core.communicators.doubling import (
    LONG_RANKS_MOST_DIRECT,
    PART_BYTES_MOST,
    RANKS_MOST_DIRECT,
    RecursiveDoubling,
)
from ringtrain._core.communicators.fused_update import ExchangeFusedUpdates
from ringtrain._core.communicators.shm.group import ShmLoneRank
from ringtrain._core.communicators.steps import ExchangeSteps
from ringtrain._core.kernels.update import ChunkUpdate
from ringtrain._core.reduction.cuts import (
    Bounds,
    cut_passing_bytes,
    cut_segments,
    cut_tensors,
    length_offsets,
    merge_short_pieces,
)
from ringtrain._core.reduction.fold import Flat, ReductionFold
from ringtrain._core.reduction.ops import ReduceOp
from ringtrain._core.transport.base import TransportCaller
from ringtrain._core.wire.messages import WireFrame, WireStep
from ringtrain._core.wire.signature import WireSignature, with_layout
from ringtrain._core.world.membership import WorldMembership

SEGMENT_BYTES: Final = 2 << 20
# Up to these sizes (for all peers together, and per peer) every rank sends everything to every rank: saving a hop is
# worth more than the bytes. See bench/README.
_DIRECT_BYTES_TO_ALL: Final = 256 << 10
_DIRECT_BYTES: Final = 16 << 10
_NOTHING: Final = np.empty(0, np.uint8)


class ExchangeCommunicator:
    """Communicator over the network: ranks read frames from each other's streams.

    `steps`: begins its collectives, also for a communicator that is built on this one.
    """

    # Longer tensors are not copied: an exchange of several sends each from its place. See bench/README.
    fusion_bytes: Final = 256 << 10

    def __init__(
        self, member: WorldMembership, process_set: int, ranks: tuple[int, ...], segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        self._member = member
        self.steps = ExchangeSteps(member, process_set, ranks, segment_bytes)
        self.segment_bytes = segment_bytes
        self.ranks = ranks
        self.position = self.steps.position
        direct_bytes = max(_DIRECT_BYTES, _DIRECT_BYTES_TO_ALL // max(1, len(ranks) - 1))
        self._direct_bytes = min(direct_bytes, segment_bytes)
        self._part_bytes = min(PART_BYTES_MOST, segment_bytes)
        self._doubling = RecursiveDoubling(self.steps) if len(ranks) > RANKS_MOST_DIRECT else None
        self._long_doubling = self._doubling if len(ranks) > LONG_RANKS_MOST_DIRECT else None
        self._updates = ExchangeFusedUpdates(self.steps, self.all_gather_parts)

    @property
    def overlaps(self) -> bool:
        return len(self.ranks) > 1

    def all_reduce(self, what: WireSignature, source: Flat, target: Flat, op: ReduceOp) -> None:
        if source.nbytes <= self._direct_bytes:
            self._reduce_all_directly(what, source, target, op)
        else:
            self._reduce_all(what, [source], target, op)

    def all_reduce_grouped(self, what: WireSignature, sources: Sequence[Flat], target: Flat, op: ReduceOp) -> None:
        """Reduce several arrays. Long arrays are sent without a copy; short neighbours are first joined in `target`."""
        self._reduce_all(what, merge_short_pieces(sources, target, self.fusion_bytes), target, op)

    def _reduce_all(self, what: WireSignature, sources: Sequence[Flat], target: Flat, op: ReduceOp) -> None:
        """Reduce `sources` into `target` in one exchange, in which reduce-scatter and all-gather overlap segment by
        segment."""
        length, dtype = sum(len(source) for source in sources), sources[0].dtype
        longest = -(-length // len(self.ranks)) * dtype.itemsize
        step = max(1, cut_passing_bytes(longest, self.segment_bytes) // dtype.itemsize)
        cuts = cut_tensors(sources, len(self.ranks), step)
        own = cuts[self.position]
        results: list[WireFrame] = []

        def frames_for(rank: int, caller: TransportCaller) -> Iterator[WireFrame]:
            yield from call.frames(WireStep.CONTRIBUTION, (part for part, _ in cuts[self.ranks.index(rank)]))
            yield from self.steps.results(call, results, len(own), caller)

        call = self.steps.call(what, (), frames_for, length * dtype.itemsize)
        folder = ReductionFold(op, dtype, len(self.ranks), self.position)
        with call:
            for slot, (part, cut) in enumerate(own):
                folder.fold(self.steps.contributions(call, slot, part, folder.keeps_all), target[cut])
                self.steps.offer(call, results, call.frame(WireStep.RESULT, slot, target[cut]))
            wheres = [[cut for _, cut in chunk] for chunk in cuts]
            for slot in range(max(len(chunk) for chunk in cuts)):
                self.steps.read_results(call, wheres, slot, target)

    def reduce_scatter(self, what: WireSignature, source: Flat, bounds: Bounds, target: Flat, op: ReduceOp) -> None:
        start = bounds[self.position]
        if doubling := self._doubling_of(source.nbytes):
            what = with_layout(what, (*what.layout, *bounds))
            parts = doubling.gather(what, source, [len(source)] * len(self.ranks))
            own = slice(start, bounds[self.position + 1])
            ReductionFold(op, source.dtype, len(self.ranks), self.position).fold((part[own] for part in parts), target)
            return
        cuts = self.steps.cut(bounds, source)

        def frames_for(rank: int, caller: TransportCaller) -> Iterator[WireFrame]:
            return call.frames(WireStep.CONTRIBUTION, (source[cut] for cut in cuts[self.ranks.index(rank)]))

        call = self.steps.call(what, bounds, frames_for, source.nbytes)
        folder = ReductionFold(op, source.dtype, len(self.ranks), self.position)
        with call:
            for index, cut in enumerate(cuts[self.position]):
                out = target[cut.start - start : cut.stop - start]
                folder.fold(self.steps.contributions(call, index, source[cut], folder.keeps_all), out)

    def all_gather(self, what: WireSignature, buffer: Flat, bounds: Bounds) -> None:
        lengths = [end - start for start, end in pairwise(bounds)]
        if doubling := self._doubling_of(max(lengths) * buffer.itemsize):
            what = with_layout(what, (*what.layout, *bounds))
            own = buffer[bounds[self.position] : bounds[self.position + 1]]
            np.concatenate(doubling.gather(what, own, lengths), out=buffer)
            return
        if self._long_doubling is not None:
            self._long_doubling.gather_in_place(what, buffer, bounds)
            return
        cuts = self.steps.cut(bounds, buffer)

        def frames_for(rank: int, caller: TransportCaller) -> Iterator[WireFrame]:
            return call.frames(WireStep.RESULT, (buffer[cut] for cut in cuts[self.position]))

        call = self.steps.call(what, bounds, frames_for, buffer.nbytes)
        with call:
            for index in range(max(len(cut) for cut in cuts)):
                self.steps.read_results(call, cuts, index, buffer)

    def all_gather_parts(
        self,
        what: WireSignature,
        part: Flat,
        gather_long: Callable[[WireSignature, Flat, Bounds], None] | None = None,
    ) -> list[Flat]:
        """Return the `part` of every rank, in the order of `ranks`; lengths may differ.

        `gather_long`: an `all_gather` of long chunks, for a communicator with a faster one.
        """
        if gather_long is None and self._long_doubling is not None:
            gather_long = self._long_doubling.gather_in_place
        if doubling := self._doubling_of(0):
            lengths = doubling.lengths(what, len(part))
            if self._doubling_of(int(lengths.max()) * part.itemsize):
                return [got.copy() for got in doubling.gather(what, part, lengths.tolist())]
            if gather_long is not None:
                bounds = length_offsets(lengths.tolist())
                whole = np.empty(bounds[-1], part.dtype)
                whole[bounds[self.position] : bounds[self.position + 1]] = part
                gather_long(what, whole, bounds)
                return [whole[start:end] for start, end in pairwise(bounds)]
        return self.all_to_all(what, [part] * len(self.ranks))

    def all_to_all(
        self, what: WireSignature, parts: Sequence[Flat], origins: Sequence[int] | None = None
    ) -> list[Flat]:
        """Send `parts[p]` to the rank at position p; return the received parts. The first frame from a rank has its
        part's length."""
        own = parts[self.position]
        step = max(1, self.segment_bytes // own.itemsize)  # lengths may differ between ranks, this must not

        def frames_for(rank: int, caller: TransportCaller) -> Iterator[WireFrame]:
            part = parts[self.ranks.index(rank)]
            yield call.frame(WireStep.SIZES, 0, np.array([len(part)], np.int64))
            yield from call.frames(WireStep.RESULT, (part[cut] for cut in cut_segments(0, len(part), step)))

        sources = self.steps.others if origins is None else [p for p in origins if p != self.position]
        destinations = [p for p in self.steps.others if origins is None or len(parts[p])]
        peers, takers = (tuple(self.ranks[p] for p in positions) for positions in (sources, destinations))
        what = with_layout(what, (self.segment_bytes, *what.layout))
        call = self.steps.call_among(peers, what, frames_for, sum(part.nbytes for part in parts), takers=takers)
        size = np.empty(1, np.int64)
        with call:
            received = [own[:0].copy()] * len(self.ranks)
            received[self.position] = own.copy()
            for position in sources:
                call.read(self.ranks[position], WireStep.SIZES, 0, size)
                received[position] = np.empty(int(size[0]), own.dtype)
            cuts = [cut_segments(0, len(part), step) for part in received]
            for index in range(max((len(cuts[p]) for p in sources), default=0)):
                for position in sources:
                    if index < len(cuts[position]):
                        part = received[position][cuts[position][index]]
                        call.read(self.ranks[position], WireStep.RESULT, index, part)
        return received

    def send_receive(self, what: WireSignature, source: Flat, to: int, target: Flat, origin: int) -> None:
        step = max(1, self.segment_bytes // source.itemsize)

        def frames_for(rank: int, caller: TransportCaller) -> Iterator[WireFrame]:
            parts = cut_segments(0, len(source), step) if rank == self.ranks[to] else []
            return call.frames(WireStep.RESULT, (source[cut] for cut in parts))

        peers = tuple(dict.fromkeys((self.ranks[to], self.ranks[origin])))
        what = with_layout(what, (self.segment_bytes,))
        call = self.steps.call_among(peers, what, frames_for, source.nbytes + target.nbytes)
        with call:
            for index, cut in enumerate(cut_segments(0, len(target), step)):
                call.read(self.ranks[origin], WireStep.RESULT, index, target[cut])

    def broadcast(self, what: WireSignature, buffer: Flat, root: int) -> None:
        if doubling := self._doubling_of(buffer.nbytes):
            of_root = [len(buffer) if position == root else 0 for position in range(len(self.ranks))]
            own = buffer if self.position == root else buffer[:0]
            buffer[...] = doubling.gather(what, own, of_root)[root]
            return
        places = self.ranks[root:] + self.ranks[:root]
        place = (self.position - root) % len(places)
        self.broadcast_along(PodBroadcastRoute(places, place, ShmLoneRank(self.ranks[self.position]), 0), what, buffer)

    def broadcast_along(self, route: PodBroadcastRoute, what: WireSignature, buffer: Flat) -> None:
        """Broadcast along `route`, which a communicator with knowledge of the pods has chosen."""
        PodBroadcast(self.steps, route, buffer).run(what)

    def barrier(self, what: WireSignature) -> None:
        if doubling := self._doubling_of(0):
            doubling.gather(what, _NOTHING, [0] * len(self.ranks))
            return
        with self.steps.call(what, (), lambda rank, caller: iter(()), 0):
            pass

    def compare(self, what: WireSignature, sequence: int) -> None:
        """Run barrier number `sequence`, in which ranks compare the signature `what`."""
        self.steps.continue_at(sequence)
        self.barrier(what)

    def can_update(self, gradients: Flat, weights: Flat) -> bool:
        return self._updates.can_update(gradients, weights)

    def update(self, what: WireSignature, gradients: Flat, bounds: Bounds, op: ReduceOp, change: ChunkUpdate) -> None:
        self._updates.update(what, gradients, bounds, op, change)

    def finish_updates(self) -> bool:
        return self._updates.finish_updates()

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        return np.zeros(nbytes, np.uint8)

    def close(self) -> None:
        """Do nothing: the membership owns the connections."""

    def _doubling_of(self, nbytes: int) -> RecursiveDoubling | None:
        """Return the RecursiveDoubling if parts of `nbytes` should use it; None if all ranks should read from all."""
        return self._doubling if nbytes <= self._part_bytes else None

    def _reduce_all_directly(self, what: WireSignature, source: Flat, target: Flat, op: ReduceOp) -> None:
        """Reduce `source` into `target` by sending it to every rank, each of which folds all contributions: one network
        hop instead of two."""
        if doubling := self._doubling_of(source.nbytes):
            parts = doubling.gather(what, source, [len(source)] * len(self.ranks))
            ReductionFold(op, source.dtype, len(self.ranks), self.position).fold(iter(parts), target)
            return

        def frames_for(rank: int, caller: TransportCaller) -> Iterator[WireFrame]:
            return call.frames(WireStep.CONTRIBUTION, [source])

        # Not yet into `target`, which may be `source`, which peers still read.
        result, parts = np.empty_like(source), self.steps.parts_like(source)
        call = self.steps.call(what, (), frames_for, source.nbytes)
        with call:
            for rank, part in zip(self.ranks, parts, strict=True):
                if part is not source:
                    call.read(rank, WireStep.CONTRIBUTION, 0, part)
            ReductionFold(op, source.dtype, len(self.ranks), self.position).fold(parts, result)
        target[...] = result
