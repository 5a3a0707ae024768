"""Reduce a bucket, update this rank's chunk of the weights and send it to all, in one exchange over the network.

Apart, a reduce-scatter and an all-gather cost twice as many requests. A bucket is offered, and asked for, before
the results of the one before are read: both are under way at the same time, and fill each other's pauses. The
results' deadline began earlier, so they are read first.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ringtrain import timeline
from ringtrain.communicators.call import Call
from ringtrain.kernels.update import ChunkUpdate
from ringtrain.reduction import fold
from ringtrain.reduction.cuts import Bounds
from ringtrain.reduction.fold import Flat
from ringtrain.reduction.ops import Op
from ringtrain.transport.base import Caller
from ringtrain.wire.frame import Frame, Step
from ringtrain.wire.signature import Signature

if TYPE_CHECKING:
    from ringtrain.communicators.exchange import ExchangeCommunicator


@dataclass(frozen=True)
class _Begun:
    """An update whose results have not been read: others still read this rank's. `call`: was entered."""

    call: Call
    cuts: list[list[slice]]
    weights: Flat


class Updates:
    """The updates of one communicator: see `Updater`."""

    def __init__(self, ring: "ExchangeCommunicator") -> None:
        self._ring = ring
        self._begun: _Begun | None = None
        self._possible: bool | None = None

    def are_possible(self) -> bool:
        """Whether all ranks have the compiled library. Collective."""
        if self._possible is None:
            here = np.array([fold.can_update()], np.uint8)
            there = self._ring.all_gather_parts(Signature("can_update"), here)
            self._possible = all(bool(part[0]) for part in there)
        return self._possible

    def update(self, what: Signature, gradients: Flat, bounds: Bounds, op: Op, change: ChunkUpdate) -> None:
        """Raises what collectives raise; then nothing is under way any more."""
        ring = self._ring
        cuts = ring.cut(bounds, gradients)
        own, chunk = cuts[ring.position], slice(bounds[ring.position], bounds[ring.position + 1])
        results: list[Frame] = []

        def frames_for(rank: int, caller: Caller) -> Iterator[Frame]:
            for index, cut in enumerate(cuts[ring.ranks.index(rank)]):
                yield call.frame(Step.CONTRIBUTION, index, gradients[cut])
            yield from ring.results(call, results, len(own), caller)

        call = ring.call(ring.laid_out(what, bounds), frames_for, gradients.nbytes, is_span=False)
        before, self._begun = self._begun, None
        with contextlib.ExitStack() as earlier, contextlib.ExitStack() as mine:
            if before is not None:
                earlier.push(before.call)
            mine.enter_context(call)
            if before is not None:
                self._read(before)
                earlier.close()
            with timeline.span("reduce", "collective", bytes=gradients.nbytes):
                for index, cut in enumerate(own):
                    parts = list(ring.contributions(call, index, gradients[cut], keep_all=True))
                    with timeline.span(f"update segment {index}", "update"):
                        fold.update(parts, op, change.cut(cut, chunk))
                    ring.offer(call, results, call.frame(Step.RESULT, index, change.weights[cut]))
            mine.pop_all()
        self._begun = _Begun(call, cuts, change.weights)
        if change.last:
            self.finish()

    def finish(self) -> None:
        """Return when all weights of the updates so far are new here, and all ranks have this one's."""
        begun, self._begun = self._begun, None
        if begun is not None:
            with contextlib.ExitStack() as stack:
                stack.push(begun.call)
                self._read(begun)

    def _read(self, begun: _Begun) -> None:
        with timeline.span("gather", "collective", bytes=begun.weights.nbytes):
            for segment in range(max(len(cuts) for cuts in begun.cuts)):
                self._ring.read_results(begun.call, begun.cuts, segment, begun.weights)
