"""Reduction over pods of several ranks by a chain: partial sums go from pod to pod, and results go back.

In an all-gather each rank gathers with its column, and the ranks of a pod share the result. Between few pods each rank
reads from all others of its column. Between more it reads from log2 P of them and forwards data: the doubling of
`doubling.py`, in which step k brings the data of the pods that are 2**k to 2**(k + 1) - 1 behind this one.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ringtrain._core.communicators.exchange import ExchangeCommunicator
from ringtrain._core.communicators.pairing import PodPairing
from ringtrain._core.communicators.shm.group import ShmLoneRank, ShmMappedBuffer, ShmRankGroup
from ringtrain._core.communicators.shm.native import Chunks, ShmCollective, accumulator_dtype
from ringtrain._core.communicators.steps import ExchangeScratchBuffers
from ringtrain._core.reduction.fold import Flat, FoldContributions
from ringtrain._core.reduction.ops import ReduceOp
from ringtrain._core.transport.base import TransportCaller
from ringtrain._core.wire.messages import WireFrame, WireStep
from ringtrain._core.wire.signature import WireSignature
from ringtrain._core.world.call import FramesFor, WorldCall


@dataclass(frozen=True)
class PodChainSection:
    """Part of a tensor that passes the chain at once. `owner`: pod that needs the result; None if all pods do."""

    chunks: Chunks
    owner: int | None

    def chunk(self, local: int) -> slice:
        return slice(*self.chunks[local])


@dataclass(frozen=True)
class ChainedPods:
    """Pods of a process set, all with the same number of ranks, as one rank sees them.

    `size`: number of all ranks. `local`: place of this rank in its pod. `pod`: number of this rank's pod, from 0 to
    `last`. `column`: world ranks at this rank's place in each pod. `group`: the ranks of this rank's pod. `network`:
    communicator of all ranks. `pairing`: grouping of the pods for pairwise sums. `scratch`: buffers for data from other
    pods.
    """

    size: int
    local: int
    pod: int
    last: int
    column: tuple[int, ...]
    group: ShmRankGroup | ShmLoneRank
    network: ExchangeCommunicator
    pairing: PodPairing
    scratch: ExchangeScratchBuffers

    def begin(
        self,
        what: WireSignature,
        pods: Iterable[int],
        frames_for: FramesFor,
        total_bytes: int,
        is_span: bool = True,
        takers: Iterable[int] | None = None,
    ) -> WorldCall:
        """Begin an exchange: read from the ranks with this rank's index in the pods `pods`, and send to those in
        `takers`.

        `takers`: numbers of pods; default: `pods`. The other arguments are those of `ExchangeSteps.call_among`.
        """
        peers = tuple(self.column[pod] for pod in pods)
        to = None if takers is None else tuple(self.column[pod] for pod in takers)
        return self.network.steps.call_among(peers, what, frames_for, total_bytes, is_span, to)


class PodChain:
    """One rank's part in one reduction along the chain of pods."""

    def __init__(
        self,
        pods: ChainedPods,
        what: WireSignature,
        sections: list[PodChainSection],
        op: ReduceOp,
        mapped: ShmMappedBuffer | None = None,
    ) -> None:
        """Prepare the reduction.

        `mapped`: the source buffer, if each rank of this pod can read those of the pod's other ranks, else None. With
        `mapped`, a reduce-scatter needs only two barriers in the pod, one at its beginning and one at its end.
        """
        self._mapped = mapped
        self._pods = pods
        self._what = what
        self._sections = sections
        self._op = op
        self._pod, self._last = pods.pod, pods.last
        # Offered frames, by index of their section; each has one receiver.
        self._partials: dict[int, WireFrame] = {}
        self._results: dict[int, WireFrame] = {}
        # Number of sections in flight between this pod and the last one.
        self._lag = 2 * (self._last - self._pod) + 1

    def all_reduce(self, source: Flat, target: Flat) -> None:
        """Reduce, and store the result on all ranks: the result goes back from pod to pod, and each pod shares it in
        memory."""
        neighbours = [pod for pod in (self._pod - 1, self._pod + 1) if 0 <= pod <= self._last]
        self._call = self._pods.begin(self._what, neighbours, self._frames_for, source.nbytes)
        with self._call:
            for index in range(len(self._sections) + self._lag):
                if index < len(self._sections):
                    section = self._sections[index]
                    out = target[section.chunk(self._pods.local)]
                    self._reduce(
                        index, source, ShmCollective(section.chunks, source, self._op, own=out, gathered=target)
                    )
                if index >= self._lag and self._pod < self._last:
                    section = self._sections[index - self._lag]
                    self._receive(index - self._lag, self._pod + 1, target[section.chunk(self._pods.local)])
                    self._pods.group.run(self._what, ShmCollective(section.chunks, target, gathered=target))

    def reduce_scatter(self, source: Flat, target: Flat, start: int) -> None:
        """Reduce, and store each section's result only in the pod that owns the section.

        The last pod computes all results and sends each to its owner. `target`: this rank's chunk, which begins at
        `start` in the tensor.
        """
        takers = list(range(self._last)) if self._pod == self._last else [self._last]
        peers = {*takers, *(pod for pod in (self._pod - 1, self._pod + 1) if 0 <= pod <= self._last)}
        self._call = self._pods.begin(self._what, sorted(peers), self._frames_for, source.nbytes)
        with self._call, self._mapped or contextlib.nullcontext():
            for index in range(len(self._sections) + self._lag):
                if index < len(self._sections):
                    section = self._sections[index]
                    mine = section.chunk(self._pods.local)
                    out = target[mine.start - start : mine.stop - start] if section.owner == self._pod else None
                    if out is None:
                        out = np.empty(mine.stop - mine.start, source.dtype)
                    self._reduce(index, source, ShmCollective(section.chunks, source, self._op, own=out))
                if index >= self._lag and self._sections[index - self._lag].owner == self._pod < self._last:
                    mine = self._sections[index - self._lag].chunk(self._pods.local)
                    self._receive(index - self._lag, self._last, target[mine.start - start : mine.stop - start])

    def _reduce(self, index: int, source: Flat, final: ShmCollective) -> None:
        """Add this pod's contributions for section `index` to the partial result of the previous pod, and offer the sum
        to the next pod.

        The last pod computes the final result, and offers it if the owner is in another pod.

        `final`: the operation that the last pod runs, without the partial result of the previous pod.
        """
        mine = self._sections[index].chunk(self._pods.local)
        folded = np.empty(mine.stop - mine.start, accumulator_dtype(source.dtype))
        before = None
        if self._pod > 0:
            before = self._pods.scratch.like(folded, 0)
            self._call.read(self._pods.column[self._pod - 1], WireStep.CONTRIBUTION, index, before)
        if self._pod < self._last:
            self._run(ShmCollective(final.chunks, source, self._op, before=before, partial=folded))
            self._offer(self._partials, index, self._call.frame(WireStep.CONTRIBUTION, index, folded))
            return
        self._run(replace(final, before=before, average_over=self._pods.size))
        if self._sections[index].owner != self._last and final.own is not None:
            self._offer(self._results, index, self._call.frame(WireStep.RESULT, index, final.own))

    def _run(self, work: ShmCollective) -> None:
        """Run `work` in this pod: fold its ranks' contributions to this rank's chunk."""
        if self._mapped is None:
            self._pods.group.run(self._what, work)
            return
        mine = slice(*work.chunks[self._pods.local])
        parts = [source[mine] for source in self._mapped.places]
        contributions = FoldContributions(parts, self._op, work.average_over, work.before)
        if work.partial is not None:
            contributions.fold_partial(work.partial)
        elif work.own is not None:
            contributions.fold(work.own)

    def _receive(self, index: int, pod: int, out: Flat) -> None:
        self._call.read(self._pods.column[pod], WireStep.RESULT, index, out)
        if self._sections[index].owner is None and self._pod > 0:
            self._offer(self._results, index, self._call.frame(WireStep.RESULT, index, out))

    def _frames_for(self, rank: int, caller: TransportCaller) -> Iterator[WireFrame]:
        pod = self._pods.column.index(rank)
        frames = self._partials if pod > self._pod else self._results
        for index, section in enumerate(self._sections):
            if pod > self._pod + 1 or (pod < self._pod and not self._sends_result(section, pod)):
                continue
            self._call.wait_until(partial(frames.__contains__, index), caller)
            yield frames.pop(index)

    def _sends_result(self, section: PodChainSection, pod: int) -> bool:
        return pod == self._pod - 1 if section.owner is None else section.owner == pod and self._pod == self._last

    def _offer(self, frames: dict[int, WireFrame], index: int, frame: WireFrame) -> None:
        frames[index] = frame
        self._call.offer_changed()


def gather_by_pods(
    pods: ChainedPods,
    what: WireSignature,
    sections: Sequence[list[PodChainSection]],
    buffer: Flat,
    passes_on: bool,
    mapped: ShmMappedBuffer | None,
) -> None:
    """Fill `buffer` with the chunks of all ranks.

    `sections`: sections of each pod's chunks, by pod. `passes_on`: whether pods forward sections of other pods, in
    about log2 N exchanges; if not, each pod reads from every other pod. `mapped`: the buffer, if each rank of this pod
    can read those of the pod's other ranks, else None. Each rank reads and shares the sections of its own pod first,
    then those of the next pods. In every pod, a forwarded section waits only for sections that come earlier in that
    order.
    """
    number, own = pods.last + 1, pods.pod
    shifts = [1 << k for k in range(pods.last.bit_length())] if passes_on else list(range(1, number))
    held = len(sections[own])

    def sent(pod: int, shift: int) -> list[PodChainSection]:
        """Return the sections that `pod` sends to the pod whose number is lower by `shift`."""
        near = range(pod, pod + min(shift, number - shift)) if passes_on else (pod,)
        return [section for one in near for section in sections[one % number]]

    def holds(count: int) -> bool:
        return held >= count

    def frames_for(rank: int, caller: TransportCaller) -> Iterator[WireFrame]:
        shift = (own - pods.column.index(rank)) % number
        for index, section in enumerate(sent(own, shift)):
            call.wait_until(partial(holds, index + 1), caller)
            yield call.frame(WireStep.RESULT, index, buffer[section.chunk(pods.local)])

    def share(section: PodChainSection) -> None:
        """Copy this rank's chunk to the other ranks of its pod; their chunks arrive before the last barrier."""
        if mapped is None:
            pods.group.run(what, ShmCollective(section.chunks, buffer, gathered=buffer))
            return
        mine = section.chunk(pods.local)
        for place, copy in enumerate(mapped.places):
            if place != pods.local:
                np.copyto(copy[mine], buffer[mine])

    peers, takers = ([(own + sign * shift) % number for shift in shifts] for sign in (1, -1))
    reads = [(i, pod, s) for pod, shift in zip(peers, shifts, strict=True) for i, s in enumerate(sent(pod, shift))]
    if not passes_on:  # the first section of every pod, then the second, and so on, so that all links are busy
        reads.sort(key=lambda read: read[0])
    call = pods.begin(what, peers, frames_for, buffer.nbytes, takers=takers)
    with call, mapped or contextlib.nullcontext():
        for section in sections[own]:
            share(section)
        for index, pod, section in reads:
            call.read(pods.column[pod], WireStep.RESULT, index, buffer[section.chunk(pods.local)])
            held += 1
            if passes_on:
                call.offer_changed()
            share(section)
