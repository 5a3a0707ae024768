"""Update that reduces, updates and gathers each bucket in one pass.

Ranks that map each other's memory read their shard of all ranks' gradients, and write new weights into each rank's
memory: one barrier per bucket, when all have its gradients, and one after the last. Over a network a bucket is one
exchange; between pods of several ranks both are combined. The results are bitwise equal to those of `pipeline`. See
docs/decisions/0009-reduce-and-update-in-one-pass.md.
"""

import time
from collections.abc import Mapping, Sequence

from ringtrain import timeline
from ringtrain._core.kernels.update import ChunkUpdate
from ringtrain._core.process_groups.group import PendingCollective
from ringtrain._core.reduction.ops import Average, Sum
from ringtrain.optim.inbox import GradientInbox
from ringtrain.optim.layout import Bucket
from ringtrain.optim.mirror import UpdateReplay
from ringtrain.optim.pipeline import OptimizerStepHold, UpdateAbandoned, WeightArrivals
from ringtrain.optim.rules import FusableUpdateRule, Rule
from ringtrain.optim.slots import MASTER
from ringtrain.optim.spans import NativeParameterSpans, StepRules
from ringtrain.optim.update_context import UpdateContext
from ringtrain.step_time import HIDDEN_UPDATE


def can_fuse(context: UpdateContext, rules: Sequence[Rule]) -> bool:
    """Return whether `FusedOptimizerUpdate` can replace `OptimizerUpdate` for these rules. Equal on all ranks.

    False with clipping, because the norm must be known before the first weight changes. False if buckets are compressed
    or on a device, because they are not reduced in the arena. False without sharding, because every rank updates all
    weights.
    """
    clips, alone = context.settings.clip_norm is not None, context.group.size == 1
    elsewhere = context.transfers.wire is not None or context.transfers.devices is not None
    fusable = all(isinstance(rule, FusableUpdateRule) for rule in rules)
    if clips or alone or elsewhere or not context.sharded or not fusable:
        return False
    arenas = [(context.arenas.gradients(bucket), context.arenas.weights(bucket)) for bucket in shared_buckets(context)]
    updates = all(context.group.can_update(*arena) for arena in arenas)
    return updates and bool(arenas)


class FusedOptimizerUpdate:
    """One update that reduces, updates and gathers each bucket in one pass (`UpdatingCommunicator`)."""

    norm: float | None = None
    hold: OptimizerStepHold | None = None

    def __init__(
        self,
        context: UpdateContext,
        inbox: GradientInbox,
        rules: StepRules,
        spans: Mapping[int, NativeParameterSpans],
    ) -> None:
        """Prepare the update. `spans`: for each bucket that is reduced over ranks, the ranges of parameters in this
        rank's shard."""
        self._rules = rules
        self._spans = spans
        self._m = context
        self._inbox = inbox
        self.number = rules.number
        self._last = shared_buckets(context)[-1]
        self.arrivals = WeightArrivals(context.layout.buckets)

    def wait_for_step(self) -> None:
        """Do nothing: this update does not wait for `step()`, but runs while gradients are submitted."""

    def run(self) -> None:
        """Run the update until this rank has all new weights. Raises the errors of the collectives."""
        before: Bucket | None = None
        copies: list[PendingCollective] = []
        is_synced = False
        self._m.transfers.order.begin()
        for bucket in self._m.transfers.order.buckets:
            is_early = not self._inbox.is_complete(bucket.index)
            # Use the time until the bucket is complete; if ranks synchronize for it, the weights of the last bucket
            # wait for that.
            is_last = before is self._last  # its weights are complete when all exchanges have ended
            if before is not None and is_early and not is_last and self._m.group.finish_updates():
                self.arrivals.arrived(before)
                before = None
            if is_early and is_synced:
                self._m.copies.catch_up_until_complete(self._inbox, bucket, self.number)
            if not self._inbox.wait_complete(bucket.index):
                raise UpdateAbandoned
            if bucket.local or not bucket.size:
                self._update_alone(bucket)
                self._m.transfers.order.reduced(bucket, self._inbox.completed_s[bucket.index])
                continue
            copies += self._update(bucket)
            self._m.transfers.order.reduced(bucket, self._inbox.completed_s[bucket.index])
            is_synced = True  # all ranks have done the previous update
            if before is not None:
                self.arrivals.arrived(before)
            before = bucket
        for copy in copies:
            copy.wait()
        self._m.transfers.order.end(self.number)
        self.arrivals.release()

    def _update(self, bucket: Bucket) -> list[PendingCollective]:
        """Update a bucket that ranks share. Return the transfers in progress to replicas."""
        arenas, shard, mirrors = self._m.arenas, self._m.shard, self._m.copies.mirrors
        spans = self._spans[bucket.index]
        own = arenas.gradients(bucket)[arenas.owned(bucket)]
        state = arenas.state[bucket.index]
        room = mirrors[0].room(bucket, self.number) if mirrors else None
        scale = self._m.mean_scale(bucket, self._inbox.micro_steps)
        change = ChunkUpdate(
            spans.rule(self._rules, shard.missed, scale),
            arenas.weights(bucket),
            tuple(state[name] for name in shard.state_names),
            state.get(MASTER),
            last=bucket is self._last,
            reduced=own if mirrors and room is None else room,
            kept=None if shard.undo is None else shard.undo.room(bucket.index, self.number),
        )
        with timeline.span(f"reduce and update bucket {bucket.index}", "bucket"):
            self._m.group.update(arenas.gradients(bucket), bucket.bounds, Average if bucket.half else Sum, change)
        spans.note(self.number, shard.missed)
        return self._m.copies.exchange(bucket, own if room is None else room, UpdateReplay(self._rules, scale))

    def _update_alone(self, bucket: Bucket) -> None:
        began_ns = time.perf_counter_ns()
        with HIDDEN_UPDATE:
            if self._m.shard.undo is not None:
                self._m.shard.undo.keep(bucket.index, self.number)
            part = self._m.arenas.part(bucket)
            scale = self._m.mean_scale(bucket, self._inbox.micro_steps)
            shard = self._m.shard
            self._rules.apply(part, shard.spans[bucket.index], shard.missed, scale, shard.kernels)
            self._m.arenas.store(bucket, part)
        timeline.record_since(began_ns, f"update bucket {bucket.index}", "update")
        self.arrivals.arrived(bucket)


def shared_buckets(context: UpdateContext) -> list[Bucket]:
    """Return the buckets that several ranks update together, in the order of reduction."""
    return [bucket for bucket in context.transfers.order.buckets if bucket.size and not bucket.local]
