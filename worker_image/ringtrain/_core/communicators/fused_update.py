"""Reduce, update and gather of a bucket in one exchange over the network.

A separate reduce-scatter and all-gather need twice as many requests. A bucket is offered and requested before the
results of the previous one are read: both are in flight at the same time, and use each other's idle time. The results
are read first, because their deadline began earlier.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ringtrain import timeline
from ringtrain._core.communicators.steps import ExchangeSteps
from ringtrain._core.kernels.update import ChunkUpdate
from ringtrain._core.reduction import fold
from ringtrain._core.reduction.cuts import Bounds
from ringtrain._core.reduction.fold import Flat
from ringtrain._core.reduction.ops import ReduceOp
from ringtrain._core.transport.base import TransportCaller
from ringtrain._core.wire.messages import WireFrame, WireStep
from ringtrain._core.wire.signature import WireSignature
from ringtrain._core.world.call import WorldCall


@dataclass(frozen=True)
class _BegunNetworkUpdate:
    """Update that has offered this rank's results, but has not read the results of other ranks. `call`: the open
    exchange."""

    call: WorldCall
    cuts: list[list[slice]]
    weights: Flat


class ExchangeFusedUpdates:
    """`UpdatingCommunicator` that exchanges gradients and new weights over the network. An update may return before the
    ranks have read each other's new weights; the next update reads them."""

    def __init__(self, steps: ExchangeSteps, all_gather_parts: Callable[[WireSignature, Flat], list[Flat]]) -> None:
        self._steps = steps
        self._all_gather_parts = all_gather_parts
        self._begun: _BegunNetworkUpdate | None = None
        self._possible: bool | None = None

    def can_update(self, gradients: Flat, weights: Flat) -> bool:
        """Return whether all ranks have the compiled library that fused updates need. Collective."""
        if self._possible is None:
            here = np.array([fold.can_fold_and_update()], np.uint8)
            there = self._all_gather_parts(WireSignature("can_update"), here)
            self._possible = all(bool(part[0]) for part in there)
        return self._possible

    def update(self, what: WireSignature, gradients: Flat, bounds: Bounds, op: ReduceOp, change: ChunkUpdate) -> None:
        """Reduce and update one bucket, as declared in `UpdatingCommunicator`."""
        steps = self._steps
        cuts = steps.cut(bounds, gradients)
        own, chunk = cuts[steps.position], slice(bounds[steps.position], bounds[steps.position + 1])
        results: list[WireFrame] = []

        def frames_for(rank: int, caller: TransportCaller) -> Iterator[WireFrame]:
            yield from call.frames(WireStep.CONTRIBUTION, (gradients[cut] for cut in cuts[steps.ranks.index(rank)]))
            yield from steps.results(call, results, len(own), caller)

        call = steps.call(what, bounds, frames_for, gradients.nbytes, is_span=False)
        before, self._begun = self._begun, None
        with contextlib.ExitStack() as earlier, contextlib.ExitStack() as mine:
            if before is not None:
                earlier.push(before.call)
            mine.enter_context(call)
            if before is not None:
                self._read(before)
                earlier.close()
            with call.span("reduce", gradients.nbytes):
                for index, cut in enumerate(own):
                    parts = list(steps.contributions(call, index, gradients[cut], keep_all=True))
                    with timeline.span(f"update segment {index}", "update"):
                        fold.FoldContributions(parts, op, len(parts)).update(change.cut(cut, chunk))
                    steps.offer(call, results, call.frame(WireStep.RESULT, index, change.weights[cut]))
            mine.pop_all()
        self._begun = _BegunNetworkUpdate(call, cuts, change.weights)
        if change.last:
            self.finish_updates()

    def finish_updates(self) -> bool:
        """Read the last weights from other ranks, and wait until they have read the weights of this rank. Return
        True."""
        begun, self._begun = self._begun, None
        if begun is not None:
            with contextlib.ExitStack() as stack:
                stack.push(begun.call)
                self._read(begun)
        return True

    def _read(self, begun: _BegunNetworkUpdate) -> None:
        with begun.call.span("gather", begun.weights.nbytes):
            for segment in range(max(len(cuts) for cuts in begun.cuts)):
                self._steps.read_results(begun.call, begun.cuts, segment, begun.weights)
