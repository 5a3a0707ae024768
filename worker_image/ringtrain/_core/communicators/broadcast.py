"""A broadcast goes in sections, by several trees in turns, and is passed on while the rest of it comes.

Two binary trees join the pods, and of all but the root's each pod passes something on in one of them at most. So
the root's pod sends every byte once, any other one about once, and each reads from two others, however many there
are: Sanders, Speck and Träff 2009, "Two-tree algorithms for full bandwidth broadcast, reduction and scan". Rank l
of a pod gets its part of each section from rank l of another one, and the ranks of a pod share what they have got.

Between few there is a tree for each but the root, which passes on to all others what it gets: Barnett et al. 1994,
"Interprocessor Collective Communication Library (InterCom)". See docs/decisions/0050-long-broadcasts.md.
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
from ringtrain._core.wire.signature import WireSignature, signature_laid_out

_ROOT: Final = 0
# Between more two trees are quicker for short tensors, and as quick for long ones: see bench/scale/ring.md.
_FEW: Final = 6
# Up to this the root sends everything to few: one hop less counts for more than the bytes.
_DIRECT_BYTES: Final = 64 << 10
# A section has the bytes of a segment of a chunk, where the tensor is so many: long ones have 12 sections or more,
# and 24 where they pass more than two links. More cost too much where ranks share cores: see bench/scale/ring.md.
_CHUNKS_OF_FEW: Final = 3
_CHUNKS: Final = 6
# A section is read so many sections later for each hop of its way. With 1 it would have to be here as soon as it
# can be, or those of the other tree would wait, and what waits for these.
_LAG: Final = 2


@dataclass(frozen=True)
class BroadcastTrees:
    """Who sends to whom among `size` places, of which the root has 0; `is_direct`: the root does to all."""

    size: int
    is_direct: bool

    @property
    def is_few(self) -> bool:
        return self.size <= _FEW

    @property
    def number(self) -> int:
        """Of the trees: each is the first one with all places but the root's moved on."""
        if self.is_direct:
            return 1
        return max(1, self.size - 1) if self.is_few else 2

    def parent(self, place: int, tree: int) -> int:
        return self._moved(self._above(self._moved(place, tree)), -tree)

    def hops(self, place: int, tree: int) -> int:
        """How many there are from the root to `place`."""
        return 0 if place == _ROOT else 1 + self.hops(self.parent(place, tree), tree)

    def _moved(self, place: int, by: int) -> int:
        return place if place == _ROOT else (place - 1 + by) % (self.size - 1) + 1

    def _above(self, place: int) -> int:
        """The parent in the first tree, where of more than a few even places have children: at distances of powers
        of two, on either side."""
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
    """Whom `place` sends to."""
    return tuple(other for other in range(1, trees.size) if trees.parent(other, tree) == place)


@dataclass(frozen=True)
class PodBroadcastRoute:
    """From the root's pod to all pods, as one rank sees it.

    `ranks`: world ranks, of each pod the one at this rank's place in it, from the root's pod on. `place`: of this
    rank among them. `group`: the ranks of its pod. `giver`: the root's place in its pod.
    """

    ranks: tuple[int, ...]
    place: int
    group: ShmRankGroup | ShmLoneRank
    giver: int


class PodBroadcast:
    """One broadcast as one rank sees it. `steps`: of all ranks."""

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
        # Of more than few nobody gets anything before all have come: each says so when those below it have. Few
        # all read from all, and so find out whether all mean the same.
        self._below, self._above = ((), ()) if self._is_few else (self._children[0], self._parents[:1])
        self._all_came = False

    def run(self, what: WireSignature) -> None:
        """Fill the buffer."""
        steps, ranks, below = self._steps, self._route.ranks, self._below
        what = signature_laid_out(what, (steps.segment_bytes, *what.layout))
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
        """World ranks that this one reads from, and those that read from it."""
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
        """Give the ranks of this pod what this one has of a section: the root all of it, others what has come."""
        bounds = self._sections[index]
        if not self._parents:
            bounds = tuple(bounds[0 if place <= self._route.giver else -1] for place in range(len(bounds)))
        self._route.group.run(what, ShmCollective(chunks_of(bounds), self._buffer, gathered=self._buffer))

    def _part(self, index: int) -> Flat:
        """What of a section comes to this rank from another pod."""
        local, bounds = self._route.group.position, self._sections[index]
        return self._buffer[bounds[local] : bounds[local + 1]]

    def _cut(self, least: int) -> list[Bounds]:
        """The sections, `least` or more, each as a part for each rank of a pod."""
        length, nbytes = len(self._buffer), self._buffer.nbytes
        chunk = nbytes // max(least, _CHUNKS_OF_FEW if self._is_few else _CHUNKS)
        step = min(-(-length // least), cut_passing_bytes(chunk, self._steps.segment_bytes) // self._buffer.itemsize)
        cuts = cut_segments(0, length, max(1, step)) or [slice(0, 0)]
        each = len(self._route.group.ranks)
        return [tuple(cut.start + at for at in even_bounds(cut.stop - cut.start, each)) for cut in cuts]
