"""An all-gather between pods of several ranks: each rank gathers with its column, and those of a pod share that.

Between few pods each rank reads from all others of its column. Between more it reads from log2 P of them, and
passes on what comes: the doubling of `doubling.py`, in which step k brings what the pods have that are 2**k to
2**(k + 1) - 1 behind its own.
"""

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from ringtrain._core.communicators.chain import ChainedPods, PodChainSection
from ringtrain._core.communicators.shm.group import ShmMappedBuffer
from ringtrain._core.communicators.shm.native import ShmCollective
from ringtrain._core.reduction.fold import Flat
from ringtrain._core.transport.base import TransportCaller
from ringtrain._core.wire.messages import WireFrame, WireStep
from ringtrain._core.wire.signature import WireSignature


def gather_by_pods(
    pods: ChainedPods,
    what: WireSignature,
    sections: Sequence[list[PodChainSection]],
    buffer: Flat,
    passes_on: bool,
    mapped: ShmMappedBuffer | None,
) -> None:
    """Fill `buffer` with the chunks of all ranks. `sections`: those of each pod's chunks, by pod. `mapped`: the
    buffer, where the ranks of this pod map each other's.

    All ranks read and share sections in the order of pods that begins with their own; what is passed on waits only
    for what is nearer in that order, in every pod.
    """
    number, own = pods.last + 1, pods.pod
    shifts = [1 << k for k in range(pods.last.bit_length())] if passes_on else list(range(1, number))
    held = len(sections[own])

    def sent(pod: int, shift: int) -> list[PodChainSection]:
        """What `pod` sends to the one that is `shift` before it."""
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
        """Give this rank's chunk to the others of its pod, and get theirs, here or with the last meeting."""
        if mapped is None:
            pods.group.run(what, ShmCollective(section.chunks, buffer, gathered=buffer))
            return
        mine = section.chunk(pods.local)
        for place, copy in enumerate(mapped.places):
            if place != pods.local:
                np.copyto(copy[mine], buffer[mine])

    peers, takers = ([(own + sign * shift) % number for shift in shifts] for sign in (1, -1))
    reads = [(i, pod, s) for pod, shift in zip(peers, shifts, strict=True) for i, s in enumerate(sent(pod, shift))]
    if not passes_on:  # of every pod the first, and so on: all links are busy at once
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
