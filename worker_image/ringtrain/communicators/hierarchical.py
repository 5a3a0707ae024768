"""Collectives over pods of several ranks: shared memory inside, one gRPC stream per rank between.

A reduction is a chain through the pods. Each pod folds its ranks' contributions onto what the pod before has sent,
and passes that on; the last pod has the result and sends it back. So every element is the left fold in rank order,
bit for bit what a flat exchange gives, and a tensor crosses each link once in each direction however many ranks a
pod has. Rank l of every pod handles its own part of the tensor; segments follow each other through the chain.
See docs/decisions/0002-chain-of-pods.md.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ringtrain.communicators.call import Call, FramesFor
from ringtrain.communicators.exchange import ExchangeCommunicator
from ringtrain.communicators.shm.join import Hosts, allocate
from ringtrain.communicators.shm.native import Chunks, Work, accumulator_dtype
from ringtrain.reduction.cuts import Bounds, even_bounds
from ringtrain.reduction.fold import Flat
from ringtrain.reduction.ops import Op
from ringtrain.reduction.scratch import Rooms
from ringtrain.transport.base import Caller
from ringtrain.wire.frame import Frame, Step
from ringtrain.wire.signature import Signature

# Up to this the flat exchange is quicker: it meets twice, whatever the number of pods. See bench/README.
_FLAT_BYTES: Final = 64 << 10
# Segments fill the chain: of a short tensor they are shorter, down to where their fixed cost shows.
_SEGMENTS: Final = 16
_LEAST_SEGMENT_BYTES: Final = 128 << 10
# An exchange costs milliseconds; see bench/README.
_FUSION_BYTES: Final = 64 << 20


@dataclass(frozen=True)
class _Section:
    """Neighbouring chunks, one for each rank of a pod. `owner`: the pod that wants the result; None: all do."""

    chunks: Chunks
    owner: int | None

    def chunk(self, local: int) -> slice:
        return slice(*self.chunks[local])


class HierarchicalCommunicator:
    """A `Communicator` of equally large pods. What is small or rare takes the flat exchange, `network`."""

    def __init__(self, network: ExchangeCommunicator, hosts: Hosts) -> None:
        self._network = network
        self._hosts = hosts
        self._group = hosts.group
        self._local = hosts.group.position
        self._pod = next(i for i, places in enumerate(hosts.positions) if network.position in places)
        self._last = len(hosts.positions) - 1
        self._column = tuple(network.ranks[places[self._local]] for places in hosts.positions)
        self._rooms = Rooms()
        self._flat_bytes = min(_FLAT_BYTES, network.segment_bytes)

    @property
    def ranks(self) -> tuple[int, ...]:
        return self._network.ranks

    @property
    def position(self) -> int:
        return self._network.position

    @property
    def fusion_bytes(self) -> int:
        return _FUSION_BYTES

    def all_reduce(self, what: Signature, source: Flat, target: Flat, op: Op) -> None:
        if source.nbytes <= self._flat_bytes:
            self._network.all_reduce(what, source, target, op)
            return
        bounds = even_bounds(len(source), len(self._group.ranks))
        _Chain(self, what, self._cut(bounds, None, source), op).all_reduce(source, target)

    def reduce_scatter(self, what: Signature, source: Flat, bounds: Bounds, target: Flat, op: Op) -> None:
        if source.nbytes <= self._flat_bytes:
            self._network.reduce_scatter(what, source, bounds, target, op)
            return
        what = replace(what, layout=bounds)
        sections = [s for pod in range(self._last + 1) for s in self._cut(self._of_pod(bounds, pod), pod, source)]
        _Chain(self, what, sections, op).reduce_scatter(source, target, bounds[self.position])

    def all_gather(self, what: Signature, buffer: Flat, bounds: Bounds) -> None:
        """Each rank sends its chunk to its column, and the ranks of a pod share what they have got."""
        if buffer.nbytes <= self._flat_bytes:
            self._network.all_gather(what, buffer, bounds)
            return
        what = replace(what, layout=bounds)
        by_pod = [self._cut(self._of_pod(bounds, pod), pod, buffer) for pod in range(self._last + 1)]
        others = [pod for pod in range(self._last + 1) if pod != self._pod]

        def frames_for(rank: int, caller: Caller) -> Iterator[Frame]:
            for index, section in enumerate(by_pod[self._pod]):
                yield call.frame(Step.RESULT, index, buffer[section.chunk(self._local)])

        call = self._call(what, others, frames_for, buffer)
        with call:
            for index in range(max(len(sections) for sections in by_pod)):
                for pod in (self._pod, *others):
                    if index >= len(by_pod[pod]):
                        continue
                    section = by_pod[pod][index]
                    if pod != self._pod:
                        call.read(self._column[pod], Step.RESULT, index, buffer[section.chunk(self._local)])
                    self._group.run(what, Work(section.chunks, buffer, gathered=buffer))

    def all_gather_parts(self, what: Signature, part: Flat) -> list[Flat]:
        return self._network.all_gather_parts(what, part)

    def broadcast(self, what: Signature, buffer: Flat, root: int) -> None:
        self._network.broadcast(what, buffer, root)

    def all_to_all(self, what: Signature, parts: Sequence[Flat]) -> list[Flat]:
        return self._network.all_to_all(what, parts)

    def barrier(self, what: Signature) -> None:
        self._network.barrier(what)

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        self._network.barrier(Signature("allocate", layout=(nbytes,)))
        return allocate(self._network, self._hosts, nbytes)

    def close(self) -> None:
        self._group.close()
        self._network.close()

    def _of_pod(self, bounds: Bounds, pod: int) -> Bounds:
        ranks = len(self._group.ranks)
        return bounds[pod * ranks : (pod + 1) * ranks + 1]

    def _cut(self, bounds: Bounds, owner: int | None, like: Flat) -> list[_Section]:
        """Cut the chunks at `bounds` into segments that go through the chain one after the other."""
        longest = max(end - start for start, end in pairwise(bounds))
        least = min(_LEAST_SEGMENT_BYTES, self._network.segment_bytes)
        bytes_each = min(max(longest * like.itemsize // _SEGMENTS, least), self._network.segment_bytes)
        step = max(1, bytes_each // like.itemsize)
        return [
            _Section(tuple((min(a + at, b), min(a + at + step, b)) for a, b in pairwise(bounds)), owner)
            for at in range(0, longest, step)
        ]

    def _call(self, what: Signature, pods: list[int], frames_for: FramesFor, like: Flat) -> Call:
        return self._network.call(what, frames_for, like.nbytes, tuple(self._column[pod] for pod in pods))


class _Chain:
    """One reduction on its way through the pods, as one rank sees it."""

    def __init__(self, pods: HierarchicalCommunicator, what: Signature, sections: list[_Section], op: Op) -> None:
        self._pods = pods
        self._what = what
        self._sections = sections
        self._op = op
        self._pod, self._last = pods._pod, pods._last
        # Frames on offer, by index of their section; each has one taker.
        self._partials: dict[int, Frame] = {}
        self._results: dict[int, Frame] = {}
        # As many sections as are under way between this pod and the last one.
        self._lag = 2 * (self._last - self._pod) + 1

    def all_reduce(self, source: Flat, target: Flat) -> None:
        """Results go back from pod to pod, and are shared in each."""
        neighbours = [pod for pod in (self._pod - 1, self._pod + 1) if 0 <= pod <= self._last]
        self._call = self._pods._call(self._what, neighbours, self._frames_for, source)
        with self._call:
            for index in range(len(self._sections) + self._lag):
                if index < len(self._sections):
                    section = self._sections[index]
                    out = target[section.chunk(self._pods._local)]
                    self._reduce(index, source, Work(section.chunks, source, self._op, own=out, gathered=target))
                if index >= self._lag and self._pod < self._last:
                    section = self._sections[index - self._lag]
                    self._receive(index - self._lag, self._pod + 1, target[section.chunk(self._pods._local)])
                    self._pods._group.run(self._what, Work(section.chunks, target, gathered=target))

    def reduce_scatter(self, source: Flat, target: Flat, start: int) -> None:
        """The last pod sends each result to the pod that owns it. `target` is the chunk that begins at `start`."""
        takers = list(range(self._last)) if self._pod == self._last else [self._last]
        peers = {*takers, *(pod for pod in (self._pod - 1, self._pod + 1) if 0 <= pod <= self._last)}
        self._call = self._pods._call(self._what, sorted(peers), self._frames_for, source)
        with self._call:
            for index in range(len(self._sections) + self._lag):
                if index < len(self._sections):
                    section = self._sections[index]
                    mine = section.chunk(self._pods._local)
                    out = target[mine.start - start : mine.stop - start] if section.owner == self._pod else None
                    if out is None:
                        out = np.empty(mine.stop - mine.start, source.dtype)
                    self._reduce(index, source, Work(section.chunks, source, self._op, own=out))
                if index >= self._lag and self._sections[index - self._lag].owner == self._pod < self._last:
                    mine = self._sections[index - self._lag].chunk(self._pods._local)
                    self._receive(index - self._lag, self._last, target[mine.start - start : mine.stop - start])

    def _reduce(self, index: int, source: Flat, final: Work) -> None:
        """Fold this pod's contributions onto the partial that came, and offer what comes out.

        `final`: what to do in the last pod, but for the partial.
        """
        mine = self._sections[index].chunk(self._pods._local)
        folded = np.empty(mine.stop - mine.start, accumulator_dtype(source.dtype))
        before = None
        if self._pod > 0:
            before = self._pods._rooms.like(folded, 0)
            self._call.read(self._pods._column[self._pod - 1], Step.CONTRIBUTION, index, before)
        if self._pod < self._last:
            work = Work(final.chunks, source, self._op, before=before, partial=folded)
            self._pods._group.run(self._what, work)
            self._offer(self._partials, index, self._call.frame(Step.CONTRIBUTION, index, folded))
            return
        self._pods._group.run(self._what, replace(final, before=before, average_over=len(self._pods.ranks)))
        if self._sections[index].owner != self._last and final.own is not None:
            self._offer(self._results, index, self._call.frame(Step.RESULT, index, final.own))

    def _receive(self, index: int, pod: int, out: Flat) -> None:
        self._call.read(self._pods._column[pod], Step.RESULT, index, out)
        if self._sections[index].owner is None and self._pod > 0:
            self._offer(self._results, index, self._call.frame(Step.RESULT, index, out))

    def _frames_for(self, rank: int, caller: Caller) -> Iterator[Frame]:
        pod = self._pods._column.index(rank)
        frames = self._partials if pod > self._pod else self._results
        for index, section in enumerate(self._sections):
            if pod > self._pod + 1 or (pod < self._pod and not self._sends_result(section, pod)):
                continue
            self._call.wait_until(partial(frames.__contains__, index), caller)
            yield frames.pop(index)

    def _sends_result(self, section: _Section, pod: int) -> bool:
        return pod == self._pod - 1 if section.owner is None else section.owner == pod and self._pod == self._last

    def _offer(self, frames: dict[int, Frame], index: int, frame: Frame) -> None:
        frames[index] = frame
        self._call.offer_changed()
