"""Broadcast that cuts a tensor into sections and sends them along several trees one after another, as a pipeline.

Two binary trees connect the pods, and each pod except the root's forwards data in at most one of them. So the root's
pod sends every byte once, any other one about once, and each reads from two others, at any number of pods: Sanders,
Speck and Träff 2009, "Two-tree algorithms for full bandwidth broadcast, reduction and scan". Rank l of a pod receives
its part of each section from rank l of another pod, and the ranks of a pod share the received parts.
Between few pods there is a tree for each except the root, which forwards its section to all others: Barnett et al.
1994, "Interprocessor Collective Communication Library (InterCom)". See docs/decisions/0050-long-broadcasts.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from typing import Final

from ringtrain._core.communicators.shm.group import ShmLoneRank, ShmRankGroup
from ringtrain._core.communicators.shm.native import ShmCollective, chunks_of
from ringtrain._core.communicators.steps import ExchangeSteps
from ringtrain._core.reduction.cuts import Bounds, cut_passing_bytes, cut_segments, even_bounds
from ringtrain._core.reduction.fold import Flat
from ringtrain._core.transport.base import TransportCaller
from ringtrain._core.wire.messages import WireFrame, WireStep
from ringtrain._core.wire.signature import WireSignature, with_layout

_ROOT: Final = 0
# Between more pods two trees are faster for short tensors, and equally fast for long ones: see bench/scale/ring.md.
_FEW: Final = 6
# Up to this size the root sends everything directly to few pods: saving a hop is worth more than the bytes.
_DIRECT_BYTES: Final = 64 << 10
# A section has the size of a segment of a chunk if the tensor is long enough: long ones have at least 12 sections, and
# 24 if they pass more than two links. More would cost too much if ranks share cores: see bench/scale/ring.md.
_CHUNKS_OF_FEW: Final = 3
_CHUNKS: Final = 6
# Number of sections by which a read is delayed per hop. With 1 each section would have to arrive as early as possible,
# else those of the other tree, and their dependents, would wait.
_LAG: Final = 2


@dataclass(frozen=True)
class BroadcastTrees:
    """Trees of a broadcast among `size` pods, numbered from the root's pod.

    `is_direct`: whether the root sends to all pods itself.
    """

    size: int
    is_direct: bool

    @property
    def is_few(self) -> bool:
        return self.size <= _FEW

    @property
    def number(self) -> int:
        """Return the number of trees over which the sections of a tensor are distributed."""
        if self.is_direct:
            return 1
        return max(1, self.size - 1) if self.is_few else 2

    def parent(self, place: int, tree: int) -> int:
        return self._moved(self._above(self._moved(place, tree)), -tree)

    def hops(self, place: int, tree: int) -> int:
        """Return the number of hops from the root to pod `place` in `tree`."""
        return 0 if place == _ROOT else 1 + self.hops(self.parent(place, tree), tree)

    def _moved(self, place: int, by: int) -> int:
        return place if place == _ROOT else (place - 1 + by) % (self.size - 1) + 1

    def _above(self, place: int) -> int:
        """Return the pod from which pod `place` receives in tree 0.

        If there are few pods, the root sends to pod 1, and pod 1 sends to all others. Otherwise only pods with even
        numbers send, to pods whose numbers differ from theirs by a power of two.
        """
        if self.is_direct:
            return _ROOT
        if self.is_few:
            return _ROOT if place == 1 else 1
        lowest = place & -place
        nearer = place ^ lowest
        above = nearer | lowest << 1
        return above if above < self.size else nearer


@lru_cache(maxsize=1024)
def children(trees: BroadcastTrees, place: int, tree: int) -> tuple[int, ...]:
    """Return the pods to which pod `place` sends in `tree`."""
    return tuple(other for other in range(1, trees.size) if trees.parent(other, tree) == place)


@dataclass(frozen=True)
class PodBroadcastRoute:
    """Position of one rank in a broadcast from the root's pod to all other pods.

    `ranks`: world ranks at this rank's place in each pod, beginning with the root's pod. `place`: index of this rank in
    `ranks`. `group`: the ranks of this rank's pod. `giver`: the root's place in the root's pod.
    """

    ranks: tuple[int, ...]
    place: int
    group: ShmRankGroup | ShmLoneRank
    giver: int


class PodBroadcast:
    """One rank's part in one broadcast. `steps`: factory of the exchanges between ranks."""

    def __init__(self, steps: ExchangeSteps, route: PodBroadcastRoute, buffer: Flat) -> None:
        self._steps, self._route, self._buffer = steps, route, buffer
        place, size, is_short = route.place, len(route.ranks), buffer.nbytes <= _DIRECT_BYTES
        self._is_few = size <= _FEW
        trees = BroadcastTrees(size, is_direct=is_short and self._is_few)
        self._sections = self._cut(1 if is_short else trees.number)
        number = min(trees.number, len(self._sections))
        self._parents = () if place == _ROOT else tuple(trees.parent(place, tree) for tree in range(number))
        self._children = tuple(children(trees, place, tree) for tree in range(number))
        hops = [trees.hops(place, tree) for tree in range(number)]
        self._order = sorted(range(len(self._sections)), key=lambda i: (i // number + _LAG * hops[i % number], i))
        self._held: set[int] = set()
        # With more than few pods no data is sent before all ranks have joined: each reports when those below it have.
        # With few, all read from all and so compare their signatures.
        self._below, self._above = ((), ()) if self._is_few else (self._children[0], self._parents[:1])
        self._all_came = False

    def run(self, what: WireSignature) -> None:
        """Run the broadcast: fill the buffer on every rank except the root."""
        steps, ranks, below = self._steps, self._route.ranks, self._below
        what = with_layout(what, (steps.segment_bytes, *what.layout))
        peers, takers = self._partners()
        call = self._call = steps.call_among(peers, what, self._frames_for, self._buffer.nbytes, takers=takers)
        with call:
            for place in below:
                call.read(ranks[place], WireStep.READY, 0, self._buffer[:0])
            self._all_came = True
            call.offer_changed()
            for index in self._order:
                if not self._parents:
                    self._share(what, index)
                else:
                    origin = self._parents[index % len(self._parents)]
                    call.read(ranks[origin], WireStep.RESULT, index, self._part(index))
                self._held.add(index)
                call.offer_changed()
                if self._parents:
                    self._share(what, index)

    def _partners(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the world ranks that this rank reads from, and the world ranks that read from this rank."""
        ranks, own = self._route.ranks, self._route.place
        if self._is_few:
            others = tuple(rank for place, rank in enumerate(ranks) if place != own)
            return others, others
        peers = dict.fromkeys((*self._parents, *self._below))
        takers = dict.fromkeys((*self._above, *chain.from_iterable(self._children)))
        return tuple(ranks[place] for place in peers), tuple(ranks[place] for place in takers)

    def _frames_for(self, rank: int, caller: TransportCaller) -> Iterator[WireFrame]:
        place = self._route.ranks.index(rank)
        if place in self._above:
            self._call.wait_until(lambda: self._all_came, caller)
            yield self._call.frame(WireStep.READY, 0, self._buffer[:0])
        for index in range(len(self._sections)):
            if place in self._children[index % len(self._children)]:
                self._call.wait_until(partial(self._held.__contains__, index), caller)
                yield self._call.frame(WireStep.RESULT, index, self._part(index))

    def _share(self, what: WireSignature, index: int) -> None:
        """Share section `index` in this pod: in the root's pod the root copies all of it to the others, in other pods
        each rank copies its part."""
        bounds = self._sections[index]
        if not self._parents:
            bounds = tuple(bounds[0 if place <= self._route.giver else -1] for place in range(len(bounds)))
        self._route.group.run(what, ShmCollective(chunks_of(bounds), self._buffer, gathered=self._buffer))

    def _part(self, index: int) -> Flat:
        """Return the part of section `index` that this rank receives from another pod."""
        local, bounds = self._route.group.position, self._sections[index]
        return self._buffer[bounds[local] : bounds[local + 1]]

    def _cut(self, least: int) -> list[Bounds]:
        """Cut the buffer into `least` or more sections. Return the bounds of each section's parts, one part per
        rank."""
        length, nbytes = len(self._buffer), self._buffer.nbytes
        chunk = nbytes // max(least, _CHUNKS_OF_FEW if self._is_few else _CHUNKS)
        step = min(-(-length // least), cut_passing_bytes(chunk, self._steps.segment_bytes) // self._buffer.itemsize)
        cuts = cut_segments(0, length, max(1, step)) or [slice(0, 0)]
        each = len(self._route.group.ranks)
        return [tuple(cut.start + at for at in even_bounds(cut.stop - cut.start, each)) for cut in cuts]
