"""Reduce, update and gather of a bucket in one pass through the chain of pods.

Rank l of every pod handles the chunks of rank l of all pods. It folds its pod's contributions to each onto the partial
sum from the previous pod, and sends the result to the next. The last pod has the sum, and sends it to the chunk's
owner. The owner updates its chunk, writes the new weights into the memory of its pod's ranks, and sends them to the
same rank of every other pod, which does the same there. Ranks of a pod have one barrier, when all have the bucket's
gradients: by then all have written the weights of the previous bucket. See
docs/decisions/0009-reduce-and-update-in-one-pass.md.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any, Final

import numpy as np

from ringtrain import timeline
from ringtrain._core.communicators.chain import ChainedPods
from ringtrain._core.communicators.shm.group import ShmRankGroup
from ringtrain._core.communicators.shm.native import accumulator_dtype
from ringtrain._core.kernels.update import ChunkUpdate
from ringtrain._core.reduction.cuts import Bounds, cut_segments
from ringtrain._core.reduction.fold import Flat, FoldContributions
from ringtrain._core.reduction.ops import ReduceOp
from ringtrain._core.transport.base import TransportCaller
from ringtrain._core.wire.messages import WireFrame, WireStep
from ringtrain._core.wire.signature import WireSignature

# Numbers of scratch buffers. Partial sums have two sides, used in turn.
_BEFORE: Final = 0
_PARTIALS: Final = 1


@dataclass(frozen=True)
class PodSharedBucket:
    """Gradients and weights of one bucket, of each rank of this pod. `bounds`: offsets of all ranks' chunks."""

    gradients: list[Flat]
    weights: list[Flat]
    bounds: Bounds
    op: ReduceOp


class PodChainUpdates:
    """Fused updates (`UpdatingCommunicator`) through a chain of up to twelve pods.

    A rank that returns from `update` has sent all data that others wait for. The weights that others have updated are
    read in `finish_updates` or in the next update, before the wait for gradients.
    """

    def __init__(self, pods: ChainedPods, group: ShmRankGroup) -> None:
        self._pods = pods
        self._group = group
        self._begun: _PodChainTrip | None = None
        self._side = 0

    def can_update(self, gradients: Flat, weights: Flat) -> bool:
        return self._group.can_update(gradients, weights)

    def update(
        self, what: WireSignature, gradients: Flat, bounds: Bounds, op: ReduceOp, change: ChunkUpdate, step: int
    ) -> None:
        """Reduce and update one bucket, as declared in `UpdatingCommunicator`. `step`: elements per message.

        Raises errors of collectives.
        """
        places = self._group.memories_of
        bucket = PodSharedBucket(places(gradients), places(change.weights), bounds, op)
        self._side = 1 - self._side
        trip = _PodChainTrip(self._pods, what, bucket, change, step, self._side)
        before, self._begun = self._begun, None
        with contextlib.ExitStack() as mine, _PodChainTripEnd(before) as ending:
            mine.enter_context(trip.call)
            with trip.call.span("reduce", gradients.nbytes):
                barrier = self._group.barrier_function(what, gradients, change.weights)
                if self._pods.pod == 0:
                    _reduce_first_trip(trip, barrier, ending)
                    # Early ranks passed the first barrier before they wrote the weights of the previous bucket.
                    self._group.barrier_function(what, gradients, change.weights)(True)
                else:
                    ending.end()
                    barrier(True)
                    trip.reduce()
            mine.pop_all()
        self._begun = trip
        if change.last:
            self.finish_updates()
            self._group.barrier_function(what, gradients, change.weights)(True)

    def finish_updates(self) -> bool:
        """Read the weights of the previous update from other pods. Return False: the weights are complete only after
        this pod's next barrier."""
        begun, self._begun = self._begun, None
        with _PodChainTripEnd(begun) as ending:
            ending.end()
        return False


class _PodChainTripEnd:
    """Context that completes the update of the previous bucket. If the context is left with an error, that update fails
    too."""

    def __init__(self, trip: "_PodChainTrip | None") -> None:
        self._trip = trip
        self._call = contextlib.ExitStack()
        if trip is not None:
            self._call.push(trip.call)

    def __enter__(self) -> "_PodChainTripEnd":
        return self

    def __exit__(self, *error: Any) -> None:
        self._call.__exit__(*error)

    def end(self) -> None:
        """Read the weights that other pods have updated, and complete the bucket; later calls do nothing."""
        trip, self._trip = self._trip, None
        if trip is not None:
            trip.read_weights()
            self._call.close()


def _reduce_first_trip(trip: "_PodChainTrip", barrier: Callable[[bool], bool], before: _PodChainTripEnd) -> None:
    """Reduce and update a bucket in the first pod, which waits for no partial sums of other pods.

    `barrier`: barrier of the pod, see `ShmRankGroup.barrier_function`. `before`: end of the previous bucket's update.
    If all gradients are here, send this pod's sums before the weights of the previous bucket are read, so that the link
    to the next pod is busy. If gradients are late, read those weights first.
    """
    if not barrier(False):
        before.end()
        barrier(True)
    trip.fold_all()
    before.end()
    trip.update_all()


class _PodChainTrip:
    """Update of one bucket along the chain of pods, on one rank. The caller runs it inside the context `call`."""

    def __init__(
        self,
        pods: ChainedPods,
        what: WireSignature,
        bucket: PodSharedBucket,
        change: ChunkUpdate,
        step: int,
        side: int,
    ) -> None:
        """Prepare the update of the bucket.

        `step`: elements per segment. `side`: half of the scratch buffers to use. Peers may still read this rank's
        partial sums of the previous update in the half that is not used.
        """
        self._pods = pods
        self._bucket = bucket
        self._change = change
        places = len(bucket.gradients)
        chunks = [bucket.bounds[pods.local + pod * places :][:2] for pod in range(pods.last + 1)]
        self._own = slice(*chunks[pods.pod])
        # Every pod's cuts of this rank's column, in the order of the chain.
        self._cuts = [(pod, cut) for pod, chunk in enumerate(chunks) for cut in cut_segments(chunk[0], chunk[1], step)]
        self._gradients = bucket.gradients[pods.local]
        self._weights = bucket.weights[pods.local]
        self._copies = [weights for place, weights in enumerate(bucket.weights) if place != pods.local]
        self._kind = accumulator_dtype(self._gradients.dtype)
        # In place if the dtype fits: only this rank reads its column of them.
        self._partials = self._gradients
        if self._kind != self._gradients.dtype and pods.pod < pods.last:
            self._partials = pods.scratch.like(np.empty(len(self._gradients), self._kind), _PARTIALS + side)
        self._offered: dict[tuple[WireStep, int], WireFrame] = {}
        others = [pod for pod in range(pods.last + 1) if pod != pods.pod]
        self._others = others[pods.pod :] + others[: pods.pod]
        self.call = pods.begin(what, others, self._frames_for, self._gradients.nbytes, is_span=False)

    def reduce(self) -> None:
        """Add this pod's contributions to the received partial sums, send the sums on, and update this rank's chunk.

        The update of a segment begins as soon as the last pod has sent its sum.
        """
        # Number of cuts in flight between this pod and the last one.
        lag = 2 * (self._pods.last - self._pods.pod) + 1
        for index in range(len(self._cuts) + lag):
            if index < len(self._cuts):
                self._fold(index)
            if index >= lag and self._pods.pod < self._pods.last:
                self._update_reduced(index - lag)

    def fold_all(self) -> None:
        """Fold all segments of the bucket in the first pod, without waiting for other pods."""
        for index in range(len(self._cuts)):
            self._fold(index)

    def update_all(self) -> None:
        """Update the segments that the first pod owns, with the sums from the last pod."""
        for index in range(len(self._cuts)):
            self._update_reduced(index)

    def _fold(self, index: int) -> None:
        owner, cut = self._cuts[index]
        contributions = self._contributions(index, cut)
        if self._pods.pod < self._pods.last:
            contributions.fold_partial(self._partials[cut])
            self._offer(WireStep.CONTRIBUTION, index, self._partials[cut])
        elif owner == self._pods.pod:
            self._update(index, cut, contributions)
        else:
            contributions.fold(self._gradients[cut])
            self._offer(WireStep.RESULT, index, self._gradients[cut])

    def _update_reduced(self, index: int) -> None:
        """Update the weights of segment `index` with the sum from the last pod, if this pod owns the segment."""
        owner, cut = self._cuts[index]
        if owner == self._pods.pod:
            reduced = self._gradients[cut]
            self.call.read(self._pods.column[self._pods.last], WireStep.RESULT, index, reduced)
            self._update(index, cut, FoldContributions([reduced], ReduceOp.Sum, 1))

    def read_weights(self) -> None:
        """Receive the weights that other pods have updated, for all ranks of this pod."""
        with self.call.span("gather", self._weights.nbytes):
            for turn in zip_longest(*(self._cuts_of(pod) for pod in self._others)):
                for index, cut in (found for found in turn if found is not None):
                    owner = self._cuts[index][0]
                    self.call.read(self._pods.column[owner], WireStep.RESULT, index, self._weights[cut])
                    for copy in self._copies:
                        np.copyto(copy[cut], self._weights[cut])

    def _contributions(self, index: int, cut: slice) -> FoldContributions:
        before = None
        if self._pods.pod > 0:
            before = self._pods.scratch.like(np.empty(cut.stop - cut.start, self._kind), _BEFORE)
            self.call.read(self._pods.column[self._pods.pod - 1], WireStep.CONTRIBUTION, index, before)
        parts = [gradients[cut] for gradients in self._bucket.gradients]
        return FoldContributions(parts, self._bucket.op, self._pods.size, before)

    def _update(self, index: int, cut: slice, contributions: FoldContributions) -> None:
        with timeline.span(f"update segment {index}", "update"):
            contributions.update(self._change.cut(cut, self._own), [copy[cut] for copy in self._copies])
        self._offer(WireStep.RESULT, index, self._weights[cut])

    def _frames_for(self, rank: int, caller: TransportCaller) -> Iterator[WireFrame]:
        """Yield the frames that `rank`, of another pod, reads from this rank, in the order of its reads."""
        pod = self._pods.column.index(rank)
        order: list[tuple[WireStep, int]] = []
        if pod == self._pods.pod + 1:
            order += ((WireStep.CONTRIBUTION, index) for index in range(len(self._cuts)))
        if self._pods.pod == self._pods.last:
            order += ((WireStep.RESULT, index) for index, _ in self._cuts_of(pod))
        order += ((WireStep.RESULT, index) for index, _ in self._cuts_of(self._pods.pod))
        for key in order:
            self.call.wait_until(partial(self._offered.__contains__, key), caller)
            yield self._offered[key]

    def _cuts_of(self, pod: int) -> list[tuple[int, slice]]:
        return [(index, cut) for index, (owner, cut) in enumerate(self._cuts) if owner == pod]

    def _offer(self, step: WireStep, index: int, payload: Flat) -> None:
        self._offered[step, index] = self.call.frame(step, index, payload)
        self.call.offer_changed()
