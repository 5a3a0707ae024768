"""The textbook ring, over the same gRPC transport as ours: each rank talks to its two neighbours only.

Reduce-scatter and all-gather in 2 (N - 1) steps, after Patarasuk & Yuan 2009; segments are pipelined. Its sums are
folded in an order that differs from chunk to chunk, which is why ringtrain does not use it (docs/decisions/0001).
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from bench.backends import Ringtrain, Work, values
from ringtrain._core.communicators.exchange import SEGMENT_BYTES, ExchangeCommunicator
from ringtrain._core.process_groups.context import current
from ringtrain._core.reduction.cuts import cut_segments, even_bounds
from ringtrain._core.transport.base import TransportCaller
from ringtrain._core.wire.messages import WireFrame, WireStep
from ringtrain._core.wire.signature import WireSignature


class NeighbourRing(Ringtrain):
    """A contender of its own."""

    def _allreduce(self, nbytes: int) -> Work:
        buffer = values(nbytes, self.rank)
        network = current().group().communicator
        assert isinstance(network, ExchangeCommunicator), "the neighbour ring runs with RINGTRAIN_TRANSPORT=grpc"
        return lambda: ring_all_reduce(network, buffer)


def ring_all_reduce(network: ExchangeCommunicator, buffer: Any) -> None:
    """Leave the maximum over all ranks in `buffer`, in place."""
    size, rank = len(network.ranks), network.position
    before, after = network.ranks[(rank - 1) % size], network.ranks[(rank + 1) % size]
    bounds = even_bounds(len(buffer), size)
    step_elements = SEGMENT_BYTES // buffer.itemsize
    chunks = [cut_segments(bounds[c], bounds[c + 1], step_elements) for c in range(size)]
    frames: dict[int, WireFrame] = {}
    steps = 2 * (size - 1)

    def frames_for(peer: int, caller: TransportCaller) -> Iterator[WireFrame]:
        if peer != after:
            return
        for index in range(sum(len(chunks[(rank - step) % size]) for step in range(steps))):
            call.wait_until(lambda index=index: index in frames, caller)
            yield frames.pop(index)

    def offer(index: int, cut: slice) -> int:
        frames[index] = call.frame(WireStep.RESULT, index, buffer[cut])
        call.offer_changed()
        return index + 1

    call = network.steps.call_among(tuple({before, after}), WireSignature("neighbour ring"), frames_for, buffer.nbytes)
    part = np.empty(step_elements, buffer.dtype)
    with call:
        sent = received = 0
        for cut in chunks[rank]:
            sent = offer(sent, cut)
        for step in range(steps):
            for cut in chunks[(rank - step - 1) % size]:
                if step < size - 1:
                    came = part[: cut.stop - cut.start]
                    call.read(before, WireStep.RESULT, received, came)
                    np.maximum(buffer[cut], came, out=buffer[cut])
                else:
                    call.read(before, WireStep.RESULT, received, buffer[cut])
                received += 1
                if step < steps - 1:
                    sent = offer(sent, cut)
