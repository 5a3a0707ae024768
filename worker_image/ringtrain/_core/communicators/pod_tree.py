"""Reduction between many pods: sums of two pods are added, then sums of two such pairs, and so on, as a tree.

The ranks of a pod add in shared memory, rank l its part of the tensor. Then rank l of every pod halves that part with
rank l of other pods, in round k with the pod whose number differs in bit k. Each retains one half and adds the other
pod's to it, so that after log2 P rounds each has the sum of 1/P of the part. The same rounds backwards gather the rest.
Of a short tensor whole parts are sent both ways instead of halves, and no gather is needed. Thakur, Rabenseifner and
Gropp 2005, "Optimization of Collective Communication Operations in MPICH".

Every element is `((pod 0 + pod 1) + (pod 2 + pod 3)) + …`, where a pod is the left fold of its ranks: an order that
depends only on the pods' number and size. See docs/decisions/0046-many-pods.md. Ranks without shared memory are pods of
one rank: see docs/decisions/0047-many-ranks-without-pods.md.
"""

from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import chain
from typing import Final

import numpy as np

from ringtrain._core.communicators.chain import ChainedPods
from ringtrain._core.communicators.pairing import PodTreeSection
from ringtrain._core.communicators.shm.group import ShmLoneRank
from ringtrain._core.communicators.shm.native import ShmCollective, accumulator_dtype
from ringtrain._core.reduction.fold import Flat
from ringtrain._core.reduction.ops import UFUNCS, ReduceOp
from ringtrain._core.transport.base import TransportCaller
from ringtrain._core.wire.messages import WireFrame, WireStep
from ringtrain._core.wire.signature import WireSignature

Span = tuple[int, int]
# Yielded by a generator that has more steps; all generators in progress are resumed once per turn.
_MORE: Final = True


def add_up_pod_sums(op: ReduceOp, lower: Flat, upper: Flat, out: Flat) -> None:
    """Combine two sums by `op` into `out`. `lower`, of the lower-numbered pods, comes first on every rank."""
    with np.errstate(all="ignore"):  # as in compiled code: an infinity is a valid result
        UFUNCS[op](lower, upper, out=out)


class PodTree:
    """One rank's part in one reduction along the tree of pods.

    `doubles`: whether partners exchange whole parts. If not, they exchange halves.
    """

    def __init__(
        self,
        pods: ChainedPods,
        what: WireSignature,
        sections: Sequence[PodTreeSection],
        op: ReduceOp,
        doubles: bool,
    ) -> None:
        self._pods = pods
        self._pairing = pods.pairing
        self._node = self._pairing.node_of(pods.pod)
        self._what = what
        self._sections = sections
        self._op = op
        self._doubles = doubles
        # Offered frames, by pod, in the order in which that pod reads them.
        self._offered: dict[int, deque[WireFrame]] = {}

    def all_reduce(self, source: Flat, target: Flat) -> None:
        """Reduce `source` over all ranks into `target`, which may be `source`."""
        self._run(lambda index: self._reduce_all(index, source, target), source.nbytes, 1 if self._doubles else 2)

    def reduce_scatter(self, source: Flat, target: Flat, start: int) -> None:
        """Reduce, and store the result of this rank's chunk, which begins at `start`, in `target`."""
        self._run(lambda index: self._reduce_part(index, source, target, start), source.nbytes, 1)

    def _run(self, steps: Callable[[int], Iterator[bool]], nbytes: int, frames_each: int) -> None:
        """Run `steps` for all sections, each section one step behind the previous one, so that waiting times overlap.

        `steps(index)` yields after each step of section `index`. A step reads data that others offered in their
        previous step, so that all ranks read, offer and synchronize in one order. `nbytes`: size of the tensor.
        `frames_each`: number of frames of a section that a pod sends to each partner pod.
        """
        counts = Counter(chain.from_iterable(self._takers(i, frames_each) for i in range(len(self._sections))))
        self._offered = {pod: deque() for pod in counts}

        def frames_for(rank: int, caller: TransportCaller) -> Iterator[WireFrame]:
            pod = self._pods.column.index(rank)
            frames = self._offered[pod]
            for _ in range(counts[pod]):
                call.wait_until(lambda: bool(frames), caller)
                yield frames.popleft()

        call = self._call = self._pods.begin(self._what, sorted(counts), frames_for, nbytes)
        with call:
            under_way: list[Iterator[bool]] = []
            for index in range(len(self._sections)):
                under_way = [step for step in (*under_way, steps(index)) if next(step, False)]
            while under_way:
                under_way = [step for step in under_way if next(step, False)]

    def _takers(self, index: int, frames_each: int) -> list[int]:
        """Return the pods to which this pod sends frames of section `index`, one entry per frame."""
        pairing, node = self._pairing, self._node
        if (acting := pairing.acting(node, index)) != self._pods.pod:
            return [acting]
        idle = pairing.idle(node, index)
        partners = [pairing.partner(node, index, k) for k in range(pairing.rounds)]
        return partners * frames_each + ([] if idle is None else [idle])

    def _reduce_all(self, index: int, source: Flat, target: Flat) -> Iterator[bool]:
        section = self._sections[index]
        out = target[slice(*section.own)]
        total = self._sum_of_pod(section, source)
        if self._pairing.pairs:
            total = yield from self._join(index, total)
        if self._pairing.acting(self._node, index) != self._pods.pod:
            yield from [_MORE] * (self._pairing.rounds * (1 if self._doubles else 2))
        elif self._doubles:
            total = yield from self._double(index, total)
            self._finish(total, out)
        else:
            total, spans = yield from self._halve(index, total)
            share = slice(*spans[-1])
            self._finish(total[share], out[share])
            yield from self._gather(index, spans, out)
        if self._pairing.pairs:
            yield from self._part(index, out, out)
        (chunks,) = section.blocks
        self._pods.group.run(self._what, ShmCollective(chunks, target, gathered=target))

    def _reduce_part(self, index: int, source: Flat, target: Flat, begin: int) -> Iterator[bool]:
        section = self._sections[index]
        out = target[section.own[0] - begin : section.own[1] - begin]
        total = self._sum_of_pod(section, source)
        if self._pairing.pairs:
            total = yield from self._join(index, total)
        others = np.empty(0, source.dtype)
        if self._pairing.acting(self._node, index) != self._pods.pod:
            yield from [_MORE] * self._pairing.rounds
        else:
            total, spans = yield from self._halve(index, total)
            share = total[slice(*spans[-1])]
            # The first of the node's two pods gets the first part.
            is_first = self._pods.pod == self._pairing.pods_of(self._node)[0]
            at = len(out) if is_first else len(share) - len(out)
            mine, rest = (share[:at], share[at:]) if is_first else (share[at:], share[:at])
            self._finish(mine, out)
            others = np.empty(len(rest), source.dtype)
            self._finish(rest, others)
        if self._pairing.pairs:
            yield from self._part(index, others, out)

    def _sum_of_pod(self, section: PodTreeSection, source: Flat) -> Flat:
        """Return the fold over the ranks of this pod. For a single rank it may be a read-only view of `source`.

        Results may overwrite the source only after all ranks have read it. If halves are exchanged, the result of a
        half arrives only after that half was read. Whole parts, of short tensors, are copied instead.
        """
        is_lone = isinstance(self._pods.group, ShmLoneRank) and len(section.blocks) == 1
        if is_lone and not self._doubles and accumulator_dtype(source.dtype) == source.dtype:
            given = source[slice(*section.blocks[0][0])]
            given.flags.writeable = False
            return given
        total = np.empty(section.cuts[-1], accumulator_dtype(source.dtype))
        at = 0
        for chunks in section.blocks:
            start, end = chunks[self._pods.local]
            partial = total[at : at + end - start]
            self._pods.group.run(self._what, ShmCollective(chunks, source, self._op, partial=partial))
            at += end - start
        return total

    def _join(self, index: int, total: Flat) -> Generator[bool, None, Flat]:
        """Add the sums of a node's two pods on the acting pod, which exchanges section `index` with other nodes.

        `total`: sum of this pod. On the acting pod return the sum of both pods; on the other pod return `total`.
        """
        acting, idle = self._pairing.acting(self._node, index), self._pairing.idle(self._node, index)
        if acting != self._pods.pod:
            self._offer(acting, WireStep.CONTRIBUTION, index, total)
        yield _MORE
        if acting != self._pods.pod or idle is None:
            return total
        before, total = total, self._own(total)
        self._add(idle, index, before, total)
        return total

    def _part(self, index: int, result: Flat, out: Flat) -> Iterator[bool]:
        """Send `result` from the pod that exchanged section `index` to the node's other pod, which stores it in
        `out`."""
        acting, idle = self._pairing.acting(self._node, index), self._pairing.idle(self._node, index)
        if acting == self._pods.pod and idle is not None:
            self._offer(idle, WireStep.RESULT, index, result)
        yield _MORE
        if acting != self._pods.pod:
            self._call.read(self._pods.column[acting], WireStep.RESULT, index, out)

    def _double(self, index: int, total: Flat) -> Generator[bool, None, Flat]:
        """Return the sum of all pods' totals."""
        for k in range(self._pairing.rounds):
            partner = self._pairing.partner(self._node, index, k)
            self._offer(partner, WireStep.CONTRIBUTION, index, total)
            yield _MORE
            before, total = total, np.empty_like(total)
            self._add(partner, index, before, total)
        return total

    def _halve(self, index: int, total: Flat) -> Generator[bool, None, tuple[Flat, list[Span]]]:
        """Halve `total` in each round: exchange halves with a partner pod, and add them. Return the sums, and the
        ranges of elements that this pod had before the first round and after each."""
        cuts = self._sections[index].cuts
        first, last = 0, self._pairing.nodes
        spans = [(0, cuts[-1])]
        for k in range(self._pairing.rounds):
            partner = self._pairing.partner(self._node, index, k)
            middle = (first + last) // 2
            lower, upper = (first, middle), (middle, last)
            kept, given = (upper, lower) if self._node >> k & 1 else (lower, upper)
            self._offer(partner, WireStep.CONTRIBUTION, index, total[cuts[given[0]] : cuts[given[1]]])
            yield _MORE
            first, last = kept
            spans.append((cuts[first], cuts[last]))
            part = slice(*spans[-1])
            before, total = total, self._own(total)
            self._add(partner, index, before[part], total[part])
        return total, spans

    def _gather(self, index: int, spans: list[Span], out: Flat) -> Iterator[bool]:
        """Fill `out` with the results of all nodes, by the rounds of `_halve` in reverse order."""
        for k in reversed(range(self._pairing.rounds)):
            partner = self._pairing.partner(self._node, index, k)
            (start, end), (low, high) = spans[k], spans[k + 1]
            self._offer(partner, WireStep.RESULT, index, out[low:high])
            yield _MORE
            missing = out[high:end] if low == start else out[start:low]
            self._call.read(self._pods.column[partner], WireStep.RESULT, index, missing)

    @staticmethod
    def _own(total: Flat) -> Flat:
        """Return an array to overwrite with sums: `total`, or a new one if `total` is read-only."""
        return total if total.flags.writeable else np.empty_like(total)

    def _add(self, pod: int, index: int, own: Flat, out: Flat) -> None:
        """Receive the sum of `pod` for section `index`, and store its fold with `own` in `out`."""
        theirs = self._pods.scratch.like(own, 0)
        self._call.read(self._pods.column[pod], WireStep.CONTRIBUTION, index, theirs)
        lower, upper = (theirs, own) if pod < self._pods.pod else (own, theirs)
        add_up_pod_sums(self._op, lower, upper, out)

    def _finish(self, total: Flat, out: Flat) -> None:
        with np.errstate(all="ignore"):
            if self._op is ReduceOp.Average:
                np.divide(total, self._pods.size, out=total)
            out[...] = total

    def _offer(self, pod: int, step: WireStep, index: int, payload: Flat) -> None:
        self._offered[pod].append(self._call.frame(step, index, payload))
        self._call.offer_changed()
