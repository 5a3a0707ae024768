"""One update, from complete buckets of gradients to new weights. It runs while the backward pass still computes.

Every rank issues the same collectives in the same order, whatever its timing:

    reduce 0, gather 0, reduce 1, gather 1, …, gather last

so that the network has work from the first complete bucket on, and only the last bucket remains after the backward
pass. Over a network, gathers use a separate lane, so that reductions and gathers fill each other's pauses. With
clipping all reductions come first, because they determine the norm.
"""

import math
import queue
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from ringtrain import timeline
from ringtrain._core.process_groups.group import Flat, PendingCollective
from ringtrain._core.reduction.ops import Average, Sum
from ringtrain.errors import ConfigurationError
from ringtrain.optim.inbox import GradientInbox
from ringtrain.optim.kernels import OwnedBucketPart, Sums
from ringtrain.optim.layout import Bucket, ParamLocation
from ringtrain.optim.mirror import UpdateReplay, descend_weights
from ringtrain.optim.norms import squares_by_parameter
from ringtrain.optim.rules import LayerUpdateRule
from ringtrain.optim.spans import StepRules
from ringtrain.optim.update_context import UpdateContext
from ringtrain.optim.update_words import GRADIENTS_READ
from ringtrain.step_time import HIDDEN_UPDATE, REDUCTION


class UpdateAbandoned(Exception):
    """Error in the thread of an update that was cancelled before all gradients were submitted."""


class WeightArrivals:
    """Events, one for each bucket, which signal that the bucket's new weights have arrived."""

    def __init__(self, buckets: Sequence[Bucket]) -> None:
        self._new = [threading.Event() for _ in buckets]

    def arrived(self, bucket: Bucket) -> None:
        self._new[bucket.index].set()

    def wait(self, bucket: Bucket) -> None:
        """Wait until the new weights of `bucket` have arrived, or the update has failed."""
        new = self._new[bucket.index]
        if not new.is_set():
            with REDUCTION:
                new.wait()

    def release(self) -> None:
        """Release all waiting threads because the update has ended or failed."""
        for new in self._new:
            new.set()


class OptimizerStepHold:
    """Commands that the training thread sends to the thread of an update, which waits for `step()`."""

    def __init__(self) -> None:
        self._orders: queue.SimpleQueue[StepRules | Callable[[], None] | None] = queue.SimpleQueue()
        self._calls: list[threading.Event] = []
        self._has_ended = False

    def go_on(self, rules: StepRules) -> None:
        """Update the weights by these rules."""
        self._orders.put(rules)

    def call(self, function: Callable[[], None]) -> threading.Event:
        """Run `function` in the thread of the waiting update.

        Return an event that is set when it has returned or the update has ended.
        """
        done = threading.Event()
        self._calls.append(done)

        def run() -> None:
            function()
            done.set()

        self._orders.put(run)
        if self._has_ended:
            done.set()
        return done

    def end(self) -> None:
        """Release the threads that wait for a call to return, because the update has ended."""
        self._has_ended = True
        for done in self._calls:
            done.set()

    def give_up(self) -> None:
        """Cancel the update before it changes weights."""
        self._orders.put(None)

    def wait(self) -> StepRules:
        """Run commands from the training thread until rules arrive; return these. Raises UpdateAbandoned after
        `give_up`."""
        while not isinstance(order := self._orders.get(), StepRules):
            if order is None:
                raise UpdateAbandoned
            order()
        return order


class OptimizerUpdate:
    """Update that reduces each bucket, updates this rank's shard of its weights, and gathers the other shards.

    With `rules` it runs while gradients are submitted. With a `hold`, gradients are reduced while they are submitted,
    and the update of weights waits for the hold's commands. `norm`: the global gradient norm, with clipping.
    """

    def __init__(
        self, context: UpdateContext, inbox: GradientInbox, rules: StepRules, hold: OptimizerStepHold | None = None
    ) -> None:
        self._m = context
        self._inbox = inbox
        self._rules = rules
        self.number = rules.number
        self.hold = hold
        self.is_mean = False  # the gradient arenas contain means over ranks and micro-steps, on all ranks
        clips = context.settings.clip_norm is not None  # no weight changes before all buckets are reduced
        self._late = clips or hold is not None
        self._order = context.layout.buckets if self._late else context.transfers.order.buckets
        self._reductions: dict[int, list[PendingCollective]] = {}  # by bucket, in order
        self.arrivals = WeightArrivals(context.layout.buckets)
        self.norm: float | None = None

    def run(self) -> None:
        """Run the update until this rank has all new weights.

        Raises errors of collectives, and `UpdateAbandoned`.
        """
        if not self._late:
            self._m.transfers.order.begin()
        clip_norm = self._m.settings.clip_norm
        clip = 1.0 if clip_norm is None else self._clip_factor(clip_norm)
        # If all are reduced already, start with the weights that the next forward pass needs first.
        buckets = tuple(reversed(self._order)) if self._late else self._order
        last = next((bucket for bucket in reversed(buckets) if not self._m.stays_here(bucket)), None)
        gathers: list[list[PendingCollective]] = []
        is_synced = False
        for place, bucket in enumerate(buckets):
            if is_synced:
                self._m.copies.catch_up_until_complete(self._inbox, bucket, self.number)
            self._reduce_through(place)
            self._wait_reduced(bucket)
            if not self._late:
                self._m.transfers.order.reduced(bucket, self._inbox.completed_s[bucket.index])
            is_synced = is_synced or not self._m.stays_here(bucket)  # all ranks have done the previous update
            if self._m.transfers.lane is not None:
                self._reduce_next_if_complete(place)
            reduced, replay = self._change(bucket, clip)
            gathers.append(self._gather(bucket))
            if reduced is not None:
                gathers[-1] += self._m.copies.exchange(bucket, reduced, replay)
        for bucket, pending in zip(buckets, gathers, strict=True):
            for gather in pending:
                gather.wait()
            if bucket is last and not self._late:  # all exchanges of this update have ended
                self._m.transfers.order.end(self.number)
            self.arrivals.arrived(bucket)

    def wait_for_step(self) -> None:
        """Reduce all gradients, then wait for `step()`. Does nothing without a `hold`."""
        if self.hold is None:
            return
        for place, bucket in enumerate(self._order):
            self._reduce_through(place)
            self._reduce_next_if_complete(place)
            self._wait_reduced(bucket)
        self._rules = self.hold.wait()

    def gather_gradients(self) -> None:
        """Write the mean gradients into the gradient arrays of all ranks. Runs in the thread of the waiting update."""
        if self.is_mean:
            return
        if self._m.group.size > 1:  # raises an error on ranks that do something else
            self._m.group.allgather_object("gradients", GRADIENTS_READ)
        gathers = []
        for bucket in self._order:
            own = self._m.arenas.gradients(bucket)[self._m.arenas.owned(bucket)]
            np.multiply(own, self._scale(bucket), out=own)
            if self._m.sharded and not self._m.stays_here(bucket):
                gathers.append(self._m.group.all_gather(self._m.arenas.gradients(bucket), bucket.bounds))
        for gather in gathers:
            gather.wait()
        self.is_mean = True

    def _scale(self, bucket: Bucket) -> float:
        """Return the factor that converts the reduced gradient to the mean."""
        return 1.0 if self.is_mean else self._m.mean_scale(bucket, self._inbox.micro_steps)

    def _change(self, bucket: Bucket, clip: float) -> tuple[Flat | None, UpdateReplay]:
        """Update this rank's shard of `bucket`. Return the reduced gradient and the factors, which the shard's replicas
        need.

        `clip`: factor on the gradient from clipping.
        """
        began_ns = time.perf_counter_ns()
        with HIDDEN_UPDATE:
            if self._m.shard.undo is not None:
                self._m.shard.undo.keep(bucket.index, self.number)
            if (wire := self._m.wire_of(bucket)) is not None:
                wire.remember(bucket)
            part = self._m.arenas.part(bucket)
            scale = self._scale(bucket) * (1.0 if bucket.local else clip)
            reduced = self._kept_for_mirror(bucket)
            spans = self._m.shard.spans[bucket.index]
            present = self._rules.apply(part, spans, self._m.shard.missed, scale, self._m.shard.kernels)
            layer_rates: dict[str, float] = {}
            if any(isinstance(rule, LayerUpdateRule) for rule in self._rules.rules):
                layer_rates = self._descend_by_layer(bucket, part, present)
            self._m.arenas.store(bucket, part)
        timeline.record_since(began_ns, f"update bucket {bucket.index}", "update")
        return reduced, UpdateReplay(self._rules, scale, layer_rates)

    def _kept_for_mirror(self, bucket: Bucket) -> Flat | None:
        """Return a copy of the reduced gradient for replicas, because the rule overwrites it; None if the shard has no
        replicas."""
        if not self._m.copies.mirrors or self._m.stays_here(bucket):
            return None
        own = self._m.arenas.gradients(bucket)[self._m.arenas.owned(bucket)]
        kept = self._m.copies.mirrors[0].room(bucket, self.number)
        if kept is None:
            return own.copy()
        kept[:] = own
        return kept

    def _reduce_through(self, place: int) -> None:
        """Wait for the gradients of the buckets up to `place` in the order, and begin their reductions."""
        while len(self._reductions) <= min(place, len(self._order) - 1):
            bucket = self._order[len(self._reductions)]
            if not self._inbox.wait_complete(bucket.index):
                raise UpdateAbandoned
            self._reductions[bucket.index] = self._reduce(bucket)

    def _reduce_next_if_complete(self, place: int) -> None:
        """Begin the reduction of the bucket after `place` if its gradients are complete, so that the network stays
        busy."""
        if place + 1 < len(self._order) and self._inbox.is_complete(self._order[place + 1].index):
            self._reduce_through(place + 1)

    def _reduce(self, bucket: Bucket) -> list[PendingCollective]:
        if self._m.stays_here(bucket):
            return []
        if (wire := self._m.wire_of(bucket)) is not None:
            if self._m.shard.undo is not None:
                self._m.shard.undo.keep_lost(bucket.index, self.number)
            absent = frozenset(at.spec.name for at in bucket.locations if self._inbox.is_absent(at.spec.name))
            return [wire.reduce_scatter(bucket, absent)]
        if self._m.transfers.devices is not None:
            return [self._m.transfers.devices.reduce_scatter(bucket)]
        buffer, group = self._m.arenas.gradients(bucket), self._m.group
        # Half types are averaged by the ring, in float32, because their sum could overflow. Others are summed, and the
        # update multiplies by 1 / size in a pass that it needs anyway.
        reductions = [group.reduce_scatter(buffer, bucket.bounds, Average if bucket.half else Sum)]
        return reductions if self._m.sharded else [*reductions, group.all_gather(buffer, bucket.bounds)]

    def _wait_reduced(self, bucket: Bucket) -> None:
        with timeline.span(f"wait for bucket {bucket.index}", "wait"):
            for reduction in self._reductions[bucket.index]:
                reduction.wait()

    def _gather(self, bucket: Bucket) -> list[PendingCollective]:
        if self._m.stays_here(bucket) or not self._m.sharded:
            return []
        if (wire := self._m.wire_of(bucket)) is not None:
            return [wire.all_gather(bucket)]
        if self._m.transfers.devices is not None:
            return [self._m.transfers.devices.all_gather(bucket)]
        return [(self._m.transfers.lane or self._m.group).all_gather(self._m.arenas.weights(bucket), bucket.bounds)]

    def _clip_factor(self, clip_norm: float) -> float:
        """Return min(1, clip_norm / norm), with the norm of all synchronised gradients after averaging."""
        synced = [bucket for bucket in self._order if not bucket.local]
        own = []
        for place, bucket in enumerate(self._order):
            self._reduce_through(place)
            self._reduce_next_if_complete(place)
            if not bucket.local:
                self._wait_reduced(bucket)
                own.append(self._m.shard.norms.of_owned(bucket, self._m.arenas.part(bucket).gradients))
        whole = self._exchanged(own, synced)
        scaled = [
            squares * self._scale(bucket) ** 2
            for bucket, sums in zip(synced, whole, strict=True)
            for squares in squares_by_parameter(bucket, sums)
        ]
        try:
            self.norm = math.sqrt(math.fsum(scaled))
        except OverflowError:  # for example if one parameter's squares overflow
            self.norm = math.inf
        if self._m.settings.check_finite and not math.isfinite(self.norm):
            raise ConfigurationError(
                f"update {self.number}: the global gradient norm is {self.norm}; lower the learning rate "
                f"or look for an overflow in the loss"
            )
        # In this order the result is NaN if the norm is; the other order would leave all gradients unclipped.
        return min(clip_norm / (self.norm + 1e-6), 1.0)

    def _descend_by_layer(
        self, bucket: Bucket, part: OwnedBucketPart, present: Sequence[ParamLocation]
    ) -> dict[str, float]:
        """Update weights by a `LayerUpdateRule`, which computes a rate for each parameter. Return rates by name."""
        own = [self._m.shard.norms.of_owned(bucket, values) for values in (part.weights, part.gradients)]
        weight_sums, direction_sums = self._exchanged(own, [bucket, bucket])
        weight_squares = squares_by_parameter(bucket, weight_sums)
        direction_squares = squares_by_parameter(bucket, direction_sums)
        rates = {}
        for at, weight, direction in zip(bucket.locations, weight_squares, direction_squares, strict=True):
            rule = self._rules.rule(at.spec)
            if isinstance(rule, LayerUpdateRule):
                ratio = rule.trust_ratio(math.sqrt(weight), math.sqrt(direction))
                rates[at.spec.name] = rule.lr * self._rules.factor * ratio
        descend_weights(part, present, rates, self._m.shard.kernels)
        return rates

    def _exchanged(self, own: list[Sums], buckets: list[Bucket]) -> list[Sums]:
        alone = not self._m.sharded or all(self._m.stays_here(bucket) for bucket in buckets)
        return own if alone else self._m.shard.norms.gathered(own, buckets)
