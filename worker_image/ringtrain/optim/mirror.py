"""The second home of another rank's shard: a copy in another pod, from which a lost shard is rebuilt.

An update is deterministic to the bit. So the owner sends the reduced gradient of its shard, and the second home
applies the same rule to its copy. It does so one update later, when it knows that all ranks have done that one:
until then it has the copy from before and the gradient, and so the shard of either update.
See docs/decisions/0022-second-home.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ringtrain import timeline
from ringtrain.errors import RingtrainError
from ringtrain.optim.arenas import MASTER, WEIGHTS, Arenas
from ringtrain.optim.kernels import Kernels, Part
from ringtrain.optim.layout import Bucket, Layout
from ringtrain.optim.rules import LayerRule, Rule, StepValues
from ringtrain.optim.wire import LOST_CHANGE, Wire
from ringtrain.process_groups.group import Flat, Group, Pending


def second_homes(pods: Sequence[int]) -> tuple[int, ...]:
    """Return the rank that is the second home of each rank's shard: one of another pod where there is one.

    `pods`: what identifies each rank's pod. Every rank is the second home of one. Where a pod has more than half
    of the ranks, some of its shards have both homes in it.
    """
    order = sorted(range(len(pods)), key=lambda rank: (pods.index(pods[rank]), rank))
    largest = max(list(pods).count(pod) for pod in pods)
    shift = largest if largest < len(pods) else 1
    homes = {rank: order[(place + shift) % len(order)] for place, rank in enumerate(order)}
    return tuple(homes[rank] for rank in range(len(pods)))


@dataclass(frozen=True)
class Replay:
    """How an update changed a bucket. `layer_rates`: of a rule that has a rate for each parameter, those of the
    bucket's parameters."""

    values: StepValues
    layer_rates: tuple[float, ...] = ()


@dataclass(frozen=True)
class Tools:
    """What an update is made with."""

    rule: Rule
    kernels: Kernels
    wire: Wire | None


class Mirror:
    """This rank's copy of the shard of rank `ward`; that of this rank is on `home`."""

    def __init__(self, layout: Layout, homes: Sequence[int], group: Group, tools: Tools) -> None:
        self.homes = tuple(homes)
        self.home, self.ward = homes[group.rank], self.homes.index(group.rank)
        self._tools = tools
        self._lane = group
        self.buckets = [bucket for bucket in layout.buckets if bucket.size and not bucket.local]
        self._values = {bucket.index: self._allocate(bucket) for bucket in self.buckets}
        self._gradients = {b.index: np.zeros(self._length(b), b.dtype) for b in self.buckets}
        self._versions = dict.fromkeys(self._values, 0)  # after which update the values are
        self._replays: dict[int, Replay] = {}  # what is to be done to them next

    def values(self, bucket: Bucket) -> dict[str, Flat]:
        """The copy, by name: weights in the precision in which they are updated, and state."""
        return self._values[bucket.index]

    def all_values(self) -> list[Flat]:
        """The arrays of the whole copy."""
        return [array for values in self._values.values() for array in values.values()]

    def gradients(self) -> list[Flat]:
        """The gradients that the next `catch_up` applies."""
        return list(self._gradients.values())

    def shard(self, bucket: Bucket) -> slice:
        """The elements of `bucket` that are copied here."""
        return bucket.shard(self.ward)

    def catch_up(self, bucket: Bucket) -> None:
        """Apply the gradient that is here. Call it when all ranks are known to have done its update."""
        replay = self._replays.pop(bucket.index, None)
        if replay is None:
            return
        with timeline.span(f"replay bucket {bucket.index}", "update"):
            self._apply(bucket, replay)
        self._versions[bucket.index] = replay.values.number

    def exchange(self, bucket: Bucket, reduced: Flat, replay: Replay) -> Pending:
        """Send the own shard's `reduced` gradient to its second home, and get the ward's, for the next `catch_up`.

        `reduced` must stay as it is until the collective has ended. Collective.
        """
        self._replays[bucket.index] = replay
        target = self._gradients[bucket.index]
        return self._lane.send_receive(reduced.view(np.uint8), self.home, target.view(np.uint8), self.ward)

    def settle(self, to: int) -> None:
        """Make the copy the shard after update `to`, the last that is done or the one before. Local."""
        for bucket in self.buckets:
            replay = self._replays.get(bucket.index)
            if replay is not None and replay.values.number == to:
                self.catch_up(bucket)
            self._replays.pop(bucket.index, None)
            if self._versions[bucket.index] != to:
                raise RingtrainError(
                    f"the copy of rank {self.ward}'s shard of bucket {bucket.index} is of update "
                    f"{self._versions[bucket.index]}, not of {to}"
                )

    def take_weights(self, arenas: Arenas, masters: bool = True) -> None:
        """Set the copy's weights from those that all ranks have; `masters`: also where they are of a half type."""
        for bucket in self.buckets:
            if bucket.half and not masters:
                continue
            self.values(bucket)[MASTER if bucket.half else WEIGHTS][:] = arenas.weights(bucket)[self.shard(bucket)]

    def begin_at(self, updates: int) -> None:
        """Note that the values were set to those after `updates`."""
        self._versions = dict.fromkeys(self._versions, updates)
        self._replays.clear()

    def _apply(self, bucket: Bucket, replay: Replay) -> None:
        values, rule, kernels, wire = self.values(bucket), self._tools.rule, self._tools.kernels, self._tools.wire
        weights = values[MASTER if bucket.half else WEIGHTS]
        gradients = self._gradients[bucket.index]
        part = Part(weights, gradients.astype(np.float32) if bucket.half else gradients, values)
        before = weights.copy() if LOST_CHANGE in values else weights
        if isinstance(rule, LayerRule):
            rule.direction(part, replay.values, kernels)
            self._descend(bucket, part, replay.layer_rates)
        else:
            rule.update(part, replay.values, kernels)
        if wire is not None and LOST_CHANGE in values:
            wire.round_change(before, weights, values[LOST_CHANGE])

    def _descend(self, bucket: Bucket, part: Part, rates: Sequence[float]) -> None:
        for start, stop, rate in layer_cuts(bucket, self.shard(bucket), rates):
            self._tools.kernels.descend(part.weights[start:stop], part.gradients[start:stop], rate)

    def _length(self, bucket: Bucket) -> int:
        return bucket.bounds[self.ward + 1] - bucket.bounds[self.ward]

    def _allocate(self, bucket: Bucket) -> dict[str, Flat]:
        names = [MASTER if bucket.half else WEIGHTS, *self._tools.rule.state_names]
        if self._tools.wire is not None and self._tools.wire.carries(bucket):
            names.append(LOST_CHANGE)
        dtype = np.float32 if bucket.half else bucket.dtype
        return {name: np.zeros(self._length(bucket), dtype) for name in names}


def layer_cuts(bucket: Bucket, owned: slice, rates: Sequence[float]) -> list[tuple[int, int, float]]:
    """The parts of each parameter that lie in `owned`, counted from its start, with the parameter's rate."""
    cuts = []
    for location, rate in zip(bucket.locations, rates, strict=True):
        start, stop = max(location.start, owned.start), min(location.stop, owned.stop)
        if start < stop:
            cuts.append((start - owned.start, stop - owned.start, rate))
    return cuts
