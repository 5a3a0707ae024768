"""Optimizer in host memory: gradients are reduced over the ring, then weights are updated."""

from __future__ import annotations

import contextlib
import contextvars
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ringtrain import timeline
from ringtrain._core.negotiation.queues import LastUpdate
from ringtrain._core.process_groups.context import current, current_or_none, drain_before_leaving
from ringtrain._core.process_groups.group import CollectiveGroup, Flat, ProcessGroup
from ringtrain._core.process_groups.process_sets import group_of
from ringtrain.errors import ConfigurationError, MismatchError, RingtrainError
from ringtrain.optim.arguments import (
    OptimizerSettings,
    Params,
    check_arguments,
    check_passes,
    check_redundancy,
    grouped_rules,
    parameters_as_arrays,
)
from ringtrain.optim.cut import OptimizedModel, UnjoinedOptimizerGroup, first_optimizer_group, make_cut
from ringtrain.optim.fused import FusedOptimizerUpdate
from ringtrain.optim.handover import hand_over_shards
from ringtrain.optim.layout import ParamSpec
from ringtrain.optim.pipeline import DeviceReducer, OptimizerStepHold, OptimizerUpdate, UpdateAbandoned
from ringtrain.optim.reform import OwnOptimizerShard, move_into_optimizer_cut
from ringtrain.optim.rules import Rule, check_rule
from ringtrain.optim.schedules import Constant, Schedule
from ringtrain.optim.spans import ABSENT, StepRules, is_gradient_absent
from ringtrain.optim.state import OptimizerStateRequest, gather_state, merged_missed_steps, restore_state, shard_state
from ringtrain.optim.update_words import describe_update_mismatch
from ringtrain.step_time import REDUCTION, mark_background_thread

# 10 MiB. Shorter buckets cost processor time where that is scarce. With a backward pass as long as the transfer, the
# last bucket is reduced after it and delays the step by its length; see docs/decisions/0004-host-optimizer.md.
BUCKET_BYTES = 10 * 1024 * 1024


class HostOptimizer:
    """Average gradients over all ranks during the backward pass, and update the weights in host memory.

        opt = HostOptimizer(params, SGD(lr=0.1, momentum=0.9))
        forward(opt.weights); backward calls opt.submit(name, gradient) layer by layer; opt.step()

    `params`: initial arrays by name, in the order of the forward pass. They are copied into flat arenas;
    `opt.weights[name]` are the trained weights, views that change in place. Rank 0's values are sent to all ranks. The
    loss must be the mean over the rank's own batch: the optimizer averages over ranks. Weights change only in `step()`.

    `update_during_backward`: True allows a weight to change as soon as its gradient is submitted and reduced, which
    leaves less work for `step()`. Submit a gradient after the backward pass has used its weight for the last time (in a
    dense layer: after the error of the layer below was computed), and neither read nor write weights between the first
    `submit` and the end of `step()`.
    `bucket_bytes`: gradients are reduced in buckets of about this size, in reverse registration order.
    `sharded`: each rank stores the state of 1/size of the elements and updates those (reduce-scatter, update,
    all-gather). Unsharded, each rank updates all; the results are bitwise equal.
    `accumulate`: number of calls of step() per update; the gradient is the mean of these micro-steps.
    `clip_norm`: scale gradients so that their global norm after averaging is at most this.
    `schedule`: factor on `rule.lr` as a function of the number of updates. `groups`: pairs of a rule and the names of
    parameters that use it instead of `rule`; all rules must be of one kind. `local`: names of parameters that are not
    synchronised: weights and state differ per rank, and are neither averaged, broadcast nor clipped.
    `check_finite`: refuse gradients with NaN or infinity, at the cost of one pass over them.
    `compression`: "bf16", "fp16" or "int8": float32 gradients and weight changes are sent in half or a quarter of the
    bytes. The rounding error is added in the next step (error feedback). Needs `sharded`.
    `elastic`: the world may change: `rollback` undoes a failed step, and `reform` continues in another world.
    `redundancy`: with `elastic`, the number of replicas of each shard, each in a different pod if there are enough
    pods: so many ranks, or pods, may be lost at once. Each replica costs memory and one more transfer of the gradient.

    Collective: all ranks construct it with the same arguments, else MismatchError. After an error in a step the weights
    may be partly updated; the optimizer refuses further use until `rollback`. Without `elastic`, restart the job from
    its checkpoint. A rank that joins a running training constructs it alone, and receives weights and state by
    `reform`; until then it refuses gradients.

    Sharding of optimizer state after Rajbhandari et al. 2020 (ZeRO, stage 1), buckets after Li et al. 2020.
    """

    def __init__(
        self,
        params: Params,
        rule: Rule,
        *,
        bucket_bytes: int = BUCKET_BYTES,
        sharded: bool = True,
        accumulate: int = 1,
        clip_norm: float | None = None,
        schedule: Schedule | None = None,
        groups: Sequence[tuple[Rule, Collection[str]]] = (),
        local: Collection[str] = (),
        check_finite: bool = False,
        compression: str | None = None,
        elastic: bool = False,
        redundancy: int = 1,
        group: CollectiveGroup | None = None,
        devices: DeviceReducer | None = None,
        update_during_backward: bool = False,
    ) -> None:
        arrays = parameters_as_arrays(params)
        settings = OptimizerSettings(
            accumulate, clip_norm, schedule or Constant(), check_finite, update_during_backward
        )
        check_arguments(arrays, local, bucket_bytes, settings)
        rules, places = grouped_rules(rule, groups, list(arrays))
        if compression is not None and not sharded:
            raise ConfigurationError(f'compression is "{compression}" with sharded=False; compression needs shards')
        check_redundancy(redundancy, elastic, sharded)
        specs = tuple(ParamSpec(name, array.shape, array.dtype, name in local) for name, array in arrays.items())
        self._model = OptimizedModel(
            specs, rules, places, settings, bucket_bytes, sharded, compression, elastic, redundancy
        )
        self._rules = self._committed = rules
        self._cut = make_cut(self._model, group or first_optimizer_group(elastic, group_of), devices)
        self._prepared: OwnOptimizerShard | None = None
        self._torn: frozenset[int] = frozenset()
        self._updates = 0
        self._norm: float | None = None
        self._update: OptimizerUpdate | FusedOptimizerUpdate | None = None
        self._thread: threading.Thread | None = None
        self._ending = False
        self._closed = False
        self._error: BaseException | None = None

        self._step_began_ns = self._backward_began_ns = time.perf_counter_ns()
        self._views = dict(self._cut.views)
        for name, array in arrays.items():
            self._views[name][...] = array
        context = self._cut.context
        if context.group.size > 1:
            for arena in context.arenas.synced_arenas():
                context.group.broadcast(arena)
        context.arenas.refresh_masters(context.layout.buckets)
        for mirror in context.copies.mirrors:
            mirror.take_weights(context.arenas)

    @property
    def weights(self) -> Mapping[str, Flat]:
        """Return the weights by name: views of the arena, changed by each update.

        Do not write to them during a step.
        """
        return MappingProxyType(self._views)

    @property
    def updates(self) -> int:
        """Return the number of completed updates, including those before a restored checkpoint.

        With `elastic`, a failed update does not count, and the call waits for an update whose step() did not wait.
        """
        if self._model.elastic and self._ending and self._thread is not None:
            self._thread.join()
        return self._updates - int(self._ending and self._error is not None)

    @property
    def accumulating(self) -> bool:
        """Return whether gradients of an incomplete update are stored: some of its micro-steps are missing."""
        return not self._ending and not self._cut.inbox.empty

    @property
    def rate(self) -> float:
        """Return the learning rate of the next update, for the first group of parameters."""
        return self._rules[0].lr * self._factor()

    @property
    def gradient_norm(self) -> float | None:
        """Return the global gradient norm of the last update before clipping; None without `clip_norm`."""
        self._end_update()
        return self._norm

    @property
    def state_bytes(self) -> int:
        """Return the bytes of optimizer state on this rank."""
        return sum(values.nbytes for state in self._cut.context.arenas.state for values in state.values())

    @property
    def slots(self) -> list[str]:
        """Return the names of the state arrays of a parameter, such as `momentum`; sorted."""
        return sorted({slot for state in self._cut.context.arenas.state for slot in state})

    @property
    def rule_name(self) -> str:
        """Return the name of the update rule, which a loaded state must match."""
        return self._model.rule_name

    @property
    def size(self) -> int:
        """Return the number of ranks that train together."""
        return self._cut.context.group.size

    def is_local(self, name: str) -> bool:
        """Return whether each rank has its own values of `name` (see `local`)."""
        return self._cut.context.layout.locations[name][1].spec.local

    def allgather_object(self, value: Any, what: str) -> list[Any]:
        """Return every rank's JSON-safe `value`, by rank. Collective, between updates."""
        self._require_idle(what)
        return self._cut.context.group.allgather_object(value, what)

    def gradient(self, name: str) -> Flat:
        """Return the array from which the gradient of `name` is reduced, in the parameter's shape and dtype.

        A gradient that is computed into it need not be copied:

            np.matmul(rows.T, error, out=optimizer.gradient("w"))
            optimizer.submit("w", optimizer.gradient("w"))

        Its initial values are undefined. Call this in each step, from any thread: it waits for the end of a step that
        did not wait, in which ranks still read the array. Raises ConfigurationError for an unknown gradient, for one
        that was submitted in this step, with `accumulate` or `devices`, and the error of a failed update.
        """
        self._raise_if_broken()
        self._require_world("gradient")
        self._end_update()
        if self._cut.context.transfers.devices is not None:
            raise ConfigurationError(
                f'gradient("{name}") was called, and gradients are reduced on the devices; call submit()'
            )
        return self._cut.inbox.room(name)

    def submit(self, name: str, gradient: ArrayLike | None, weight: float = 1.0) -> None:
        """Submit the gradient of `name` for this step. From any thread, in any order.

        The gradient is copied, unless it was computed into the array of `gradient(name)`. Pass None if this rank has no
        gradient for `name`; a parameter for which no rank has a gradient does not change, and neither does its state.

        After this call the parameter may change: the backward pass must no longer need it.
        `weight`: factor on this rank's gradient before averaging: `Batch.weight` of `ringtrain.data.shard`.
        The bucket's reduction starts when the bucket is complete and all earlier buckets have started. Raises
        ConfigurationError for a gradient of the wrong shape or dtype, and the error of a failed update.
        """
        self._submit(name, lambda: self._cut.inbox.put(name, gradient, weight))

    def submit_with(self, name: str, store: Callable[[], None], present: bool = True) -> None:
        """Submit a gradient that `store` writes into the memory of the device reducer.

        `present`: False if this rank has no gradient; `store` then records that.
        """
        self._submit(name, lambda: self._cut.inbox.put_with(name, store, present))

    def set_rules(self, rules: Sequence[Rule]) -> None:
        """Set the rules for the next update, one for each group of parameters; only their numbers may change.

        Local: every rank must set the same. Call it before `step()`; with `update_during_backward`, before the first
        gradient of an update.
        """
        names = self._model.state_names
        for index, (rule, before) in enumerate(zip(rules, self._rules, strict=True)):
            if rule is before or rule == before:
                continue
            check_rule(rule)
            missing = [name for name in rule.state_names if name not in names]
            if type(rule) is not type(before) or missing:
                raise ConfigurationError(
                    f"group {index} of parameters would be updated by {rule}, and began with {before}: the state "
                    f"{missing or 'of another rule'} was not allocated; make the optimizer with it"
                )
        self._rules = tuple(rules)

    def gather_gradients(self) -> dict[str, Flat | None]:
        """Return the mean gradient of each parameter over all ranks and micro-steps, None if no rank has one.

        The arrays are views of the memory from which the update is computed: writing to them changes the update. All
        gradients must have been submitted, and weights must wait for `step()`. Collective.
        """
        with REDUCTION:
            self._waiting_step("gather_gradients").call(self._gather_in_update).wait()
        self._raise_if_broken()
        arenas, found = self._cut.context.arenas, {}
        for name, (bucket, location) in self._cut.context.layout.locations.items():
            values = arenas.gradients(bucket)[location.start : location.stop]
            absent = not values.size or is_gradient_absent(values)
            found[name] = None if absent else values.reshape(location.spec.shape)
        return found

    def replace_gradients(self, gradients: Mapping[str, Flat | None]) -> None:
        """Replace the mean gradients of the coming update, None for a parameter that must not change.

        Call it after `gather_gradients`, with the same values on all ranks. Local.
        """
        for name, values in gradients.items():
            bucket, location = self._cut.context.layout.locations[name]
            own = self._cut.context.arenas.gradients(bucket)[location.start : location.stop]
            if values is None:
                own[...] = ABSENT
            elif own.size:
                own[...] = values.reshape(-1)  # numpy copies nothing if both are the same memory
                self._cut.inbox.mark(name, own)

    def drop(self) -> None:
        """Discard the gradients that were submitted for an update that waits for `step()`. Call it on every rank."""
        hold = self._waiting_step("drop")
        hold.give_up()
        assert self._thread is not None
        with REDUCTION:
            self._thread.join()
        self._raise_if_broken()
        self._thread = self._update = None
        self._cut.inbox.begin_update()

    def require_last_micro_step(self, what: str) -> None:
        """Raise ConfigurationError unless this is the last micro-step of an update. `what` begins the message."""
        if not self._cut.inbox.is_last_micro_step:
            raise ConfigurationError(
                f"{what} in one of the first of {self._cut.context.settings.accumulate} micro-steps, and the update is "
                "made of all of them: do it in the last one"
            )

    def _waiting_step(self, what: str) -> OptimizerStepHold:
        self._raise_if_broken()
        if not self.waits_for_step:
            raise ConfigurationError(
                f"{what}() was called where no update waits for step(); call it after the last gradient and before "
                "step(), without update_during_backward"
            )
        self._cut.inbox.check_complete()
        assert self._update is not None
        assert self._update.hold is not None
        return self._update.hold

    @property
    def waits_for_step(self) -> bool:
        """Return whether the next `step()` makes an update for which no weight has changed yet."""
        held = self._update is not None and self._update.hold is not None
        return held and self._thread is not None and not self._ending

    def flush(self, takes_weights: bool = False) -> bool:
        """Update from the micro-steps submitted up to now, with `accumulate`, although some are missing.

        Return False if there were none. Call it on every rank after the same number. `takes_weights`: call
        `take_weights` before the update.
        """
        self._raise_if_broken()
        self._end_update()
        if self._cut.context.transfers.devices is not None:
            raise ConfigurationError("flush() was called, and gradients are reduced on the devices; end the update")
        if not self._cut.inbox.flush():
            return False
        self._start_update()
        if takes_weights and self.waits_for_step:
            self.take_weights()
        self._finish(wait=True)
        return True

    def step(self, wait: bool = True) -> bool:
        """End the step.

        Return True if an update was made and all weights are new; False while gradients are accumulated.

        `wait=False`: return while weights are still being received; call `wait_for` before reading each. Raises
        ConfigurationError if gradients are missing (submit them and call again), PeerLost or MismatchError if a
        collective failed.
        """
        self._raise_if_broken()
        self._end_update()
        timeline.record_since(self._backward_began_ns, "backward", "backward")
        if not self._cut.inbox.end_micro_step():
            return False
        self._finish(wait)
        return True

    def _finish(self, wait: bool) -> None:
        """Run the update after all its gradients were submitted."""
        if self._thread is None or self._update is None:
            raise ConfigurationError("step() was called from two threads; call it from one")
        if self._update.hold is not None:
            rules = self._step_rules()
            self._record_rates(rules)
            self._update.hold.go_on(rules)
        self._updates += 1
        self._ending = True
        group = self._cut.context.group
        if isinstance(group, ProcessGroup) and group.size > 1:
            current().attached(LastUpdate, LastUpdate).note(group, self._settle, describe_update_mismatch)
        if not wait:
            drain_before_leaving(self)
        self._cut.context.transfers.order.overlaps = not wait
        if wait:
            self._end_update()
        self._step_began_ns = timeline.step_ended(self._step_began_ns, self._updates)

    def _step_rules(self) -> StepRules:
        return StepRules(self._updates + 1, self._factor(), self._rules, self._model.group_of)

    def _factor(self) -> float:
        """Return the schedule's factor for the next update."""
        factor = self._model.settings.schedule(self._updates)
        if not math.isfinite(factor):
            raise ConfigurationError(f"schedule gave {factor} for step {self._updates}; expected a finite factor")
        return factor

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Set the number of micro-steps per update from the next one on, like `accumulate`.

        Collective if the number changes.

        Valid for this world only: the next world, and ranks that join it, begin with `accumulate`. Call it between
        updates, else ConfigurationError. Raises MismatchError if ranks pass different numbers, because the mean would
        be wrong.
        """
        check_passes(passes, "passes")
        self._require_idle("set_backward_passes_per_step")
        if passes == self._cut.context.settings.accumulate:
            return
        group, what = self._cut.context.group, "set_backward_passes_per_step"
        for rank, other in enumerate(group.allgather_object(passes, what)):
            if other != passes:
                raise MismatchError(
                    f"{what}: passes is {passes} on rank {group.rank} and {other} on rank {rank}; every rank must "
                    "take as many"
                )
        self._cut = self._cut.accumulating(passes)

    def wait_for(self, name: str | None = None) -> None:
        """Wait until the last step has updated the weight `name`, or every weight if None.

        Raises the same errors as `step`.
        """
        if name is None:
            self._end_update()
        elif self._ending and self._update is not None:
            self._update.arrivals.wait(self._cut.context.layout.locations[name][0])
            self._raise_if_broken()

    def drain(self) -> None:
        """Wait for an update whose step() was called to end, successfully or not."""
        if self._ending and self._thread is not None:
            self._thread.join()

    def _settle(self) -> None:
        self._require_idle("join")

    def close(self) -> None:
        """Cancel an update in progress, unless its step() was called: then wait for it to end."""
        with contextlib.suppress(Exception):  # the next call raises the step's error
            self._end_update()
        self._error = self._error or RingtrainError("the optimizer was closed")
        self._closed = True
        self._give_up()
        if (world := current_or_none()) is not None:
            world.attached(LastUpdate, LastUpdate).forget(self._cut.context.group)

    def _give_up(self) -> None:
        """Cancel an update whose step() was not called."""
        self._cut.inbox.cancel()
        if self._update is not None and self._update.hold is not None:
            self._update.hold.give_up()

    def state_dict(self, root: int | None = None, error_feedback: bool = True) -> dict[str, Any]:
        """Gather the complete weights and state of all ranks by name. Collective, between updates.

        `root`: the only rank that receives them; the others get {} and need no memory for them. If None, every rank
        receives them. `error_feedback`: with `compression`, also gather the rounding errors: for each rank an array as
        long as the weights, and one more. Without them a resumed training produces other weights than an uninterrupted
        one. Raises StateCorrupt, on every rank, if weights that must be equal on all ranks differ.
        """
        self._require_world("state_dict")
        self._require_idle("state_dict")
        replicas = self._cut.replicas if self._model.sharded else None  # unsharded, a rank may call this alone
        digest = replicas.digest() if replicas is not None else None
        wanted = OptimizerStateRequest(self._updates, self._model.rule_name, root, error_feedback, digest)
        return gather_state(self._cut.context, wanted)

    def shard_dict(self, error_feedback: bool = True) -> dict[str, Any]:
        """Copy this rank's part of weights and state, for a checkpoint below a URI. Not collective; between updates.

        The parts of all ranks together form the `state_dict`, which `load_state_dict` accepts at any number of ranks.
        """
        self._require_world("shard_dict")
        self._require_idle("shard_dict")
        return shard_state(self._cut.context, self._updates, self._model.rule_name, error_feedback)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set weights, state and number of updates from a `state_dict` of any world size. Not collective.

        Error feedback of compression is restored: bitwise in a world of the same size; in another size each rank gets
        the mean over the ranks that saved it; a single rank, which compresses nothing, drops it.
        Raises ConfigurationError, with nothing changed, if the state belongs to another rule or model.
        """
        self._require_idle("load_state_dict")
        self._updates, missed = restore_state(self._cut.context, self._model.rule_name, state)
        self._cut.begin_at(self._updates, missed)

    def scale_state(self, slot: str, factor: float) -> None:
        """Multiply the state `slot` of all parameters by `factor`. Local, between updates: every rank does the same.

        Raises ConfigurationError with `elastic`, whose replicas of shards would differ.
        """
        if self._cut.context.shard.undo is not None:
            raise ConfigurationError(
                f"scale_state: the {slot} of a HostOptimizer with elastic=True can't be scaled, because "
                "its replicas on other ranks would keep the old values; pass "
                "momentum_correction=False to the callback that changes the learning rate"
            )
        self._require_idle("scale_state")
        for state in self._cut.context.arenas.state:
            if slot in state:
                state[slot] *= factor

    def take_weights(self) -> None:
        """Continue from weights that the caller has changed in place, to the same values on all ranks.

        Local; between updates, or before the `step()` that an update waits for. Without `elastic` this does nothing,
        because an update reads the current weights. With it a rank copies them into its replicas of other ranks'
        shards, and earlier updates can no longer be undone.
        """
        if self._cut.context.shard.undo is None:
            return
        if not self.waits_for_step:
            self._require_idle("take_weights")
            self._take_weights()
            return
        with REDUCTION:
            self._waiting_step("take_weights").call(self._take_weights).wait()
        self._raise_if_broken()

    def take_weights_from(self, values: Mapping[str, Flat]) -> None:
        """Copy those `values` that differ bitwise from the weights, then do the same as `take_weights`.

        Raises ConfigurationError for values of another shape or dtype.
        """
        is_set = False
        for name, value in values.items():
            held = self.weights[name]
            if (held.shape, held.dtype) != (value.shape, value.dtype):
                raise ConfigurationError(
                    f"weight {name!r} is {value.dtype}{list(value.shape)}; expected {held.dtype}{list(held.shape)}, "
                    "with which training began"
                )
            bits = f"u{held.itemsize}"  # bitwise, so that a NaN equals itself
            if not np.array_equal(held.view(bits), np.asarray(value, order="C").view(bits)):
                held[...] = value
                is_set = True
        if is_set:
            self.take_weights()

    def _take_weights(self) -> None:
        missed = self._cut.context.shard.missed.counts
        for mirror in self._cut.context.copies.mirrors:
            mirror.settle(self._updates)
            mirror.take_weights(self._cut.context.arenas)
            missed = merged_missed_steps([missed, mirror.missed.counts])
        self._cut.settle_at(self._updates, missed)

    def commit(self) -> None:
        """Make the current rules those that `rollback` restores."""
        self._committed = self._rules

    def rollback(self, to: int | None = None) -> int:
        """Undo the update in progress, and restore this rank's part of weights and state after update `to`.

        Return `to`.

        Local; needs `elastic`. `to`: `updates` (also None), or `updates - 1`, if another rank did not finish the last
        update. Discards gradients and micro-steps submitted since, and the error of a step. If an update had begun to
        change weights, those of other ranks' shards are valid again after `reform`.
        Waits for an update whose step() was called: its world must have failed, or have all its ranks.
        """
        undo = self._cut.context.shard.undo
        if undo is None:
            raise ConfigurationError("rollback() needs HostOptimizer(elastic=True), which stores undo copies")
        if self._closed:
            raise RingtrainError("the optimizer was closed")
        if not self._ending:
            self._give_up()
        if self._thread is not None:
            self._thread.join()
        done = self.updates
        chosen = done if to is None else to
        if chosen not in (done, done - 1) or chosen < 0:
            raise ConfigurationError(f"rollback: to is {to}; expected {done}, the updates done, or one less")
        restored = undo.restore(chosen)
        self._cut.context.shard.missed.undo(chosen)
        for mirror in self._cut.context.copies.mirrors:
            if chosen < done:
                mirror.settle(chosen)
            else:  # other ranks may not have done that update; it may have to be undone too
                mirror.forget_after(chosen)
        for index in restored:
            bucket = self._cut.context.layout.buckets[index]
            self._cut.context.arenas.round_master(bucket)
            if self._model.sharded and not self._cut.context.stays_here(bucket):
                self._torn |= {index}
        self._updates, self._thread, self._update, self._ending = chosen, None, None, False
        self._error = self._norm = None
        self._rules = self._committed
        self._cut.inbox.begin_update()
        return chosen

    def hand_over(self, leaving: Collection[int]) -> None:
        """Send ranks that stay the state that only `leaving` ranks have, for `prepare` in the next world.

        Collective, after the same update on all ranks; needs `elastic`.
        """
        self._require_idle("hand_over")
        hand_over_shards(self._cut.context, self._updates, leaving)

    def reform(self, group: CollectiveGroup, former: Sequence[int | None]) -> None:
        """Continue in the world of `group`: `prepare`, then `adopt`. Collective."""
        self.prepare(group, former)
        self.adopt()

    def prepare(self, group: CollectiveGroup, former: Sequence[int | None]) -> None:
        """Reshard weights and state for `group`. The current copy stays in use until `adopt()`.

        Collective; needs `elastic`.

        `former`: for each rank of `group`, the rank that it had in the world with the state, or None for a new process.
        Survivors call `rollback` to the same update before. Only missing data is sent. The present state does not
        change: if a rank is lost meanwhile (PeerLost), call it again. Raises StateLost, on every rank, if no rank has a
        shard; MismatchError if survivors are at different updates, or a newcomer has another model.
        """
        if self._cut.context.shard.undo is None:
            raise ConfigurationError("reform() needs HostOptimizer(elastic=True)")
        self._require_idle("reform")
        self._prepared = None
        own = OwnOptimizerShard(self._cut, self._updates, self._torn)
        self._prepared = move_into_optimizer_cut(self._model, group, former, own)

    def adopt(self) -> None:
        """Switch to the state that `prepare` received. Local. `weights` then has other arrays."""
        if self._prepared is None:
            raise ConfigurationError("adopt() was called, but nothing is prepared; call prepare() on all ranks")
        self._cut, self._updates, self._torn = self._prepared.cut, self._prepared.updates, self._prepared.torn
        self._views.update(self._cut.views)
        self._prepared = None

    def discard(self) -> None:
        """Discard the state that `prepare` received. Local."""
        self._prepared = None

    def _submit(self, name: str, put: Callable[[], bool]) -> None:
        self._raise_if_broken()
        self._require_world("submit")
        self._end_update()
        if self._cut.inbox.empty:
            self._backward_began_ns = time.perf_counter_ns()
        with timeline.span(f"submit {name}", "submit"):
            first = put()
        if first:
            self._start_update()

    def _start_update(self) -> None:
        context, inbox, rules = self._cut.context, self._cut.inbox, self._step_rules()
        self._record_rates(rules)
        if not context.settings.update_during_backward:
            self._update = OptimizerUpdate(context, inbox, rules, OptimizerStepHold())
        elif self._cut.fused:
            self._update = FusedOptimizerUpdate(context, inbox, rules, self._cut.fused)
        else:
            self._update = OptimizerUpdate(context, inbox, rules)
        # One thread per update: it costs 0.1 ms and needs no close. Daemon: a backward pass that raises would leave it
        # waiting for gradients for ever. In the caller's context, which identifies the rank if a process has several.
        self._thread = threading.Thread(
            target=contextvars.copy_context().run,
            args=(self._run, self._update),
            name="ringtrain-update",
            daemon=True,
        )
        self._thread.start()

    def _record_rates(self, rules: StepRules) -> None:
        if self._cut.replicas is not None:
            self._cut.replicas.uses(rules.number, [rule.lr * rules.factor for rule in rules.rules])

    def _end_update(self) -> None:
        """Wait for an update whose step() was called, and prepare for the next."""
        if not self._ending or self._thread is None or self._update is None:
            return
        with REDUCTION:
            self._thread.join()
        self._raise_if_broken()
        self._norm = self._update.norm
        self._thread = None
        self._ending = False
        self._cut.inbox.begin_update()

    def _gather_in_update(self) -> None:
        assert isinstance(self._update, OptimizerUpdate)
        self._update.gather_gradients()

    def _run(self, update: OptimizerUpdate | FusedOptimizerUpdate) -> None:
        mark_background_thread()
        try:
            checks = [check for check in (self._cut.replicas, self._cut.check) if check is not None]
            for check in checks:
                check.before(update.number)
            update.wait_for_step()
            if self._cut.replicas is not None:
                self._cut.replicas.starts(update.number)
            update.run()
            for check in checks:
                check.after(update.number)
        except UpdateAbandoned:
            return
        except MismatchError as error:
            self._error = describe_update_mismatch(error)
        except BaseException as error:
            self._error = error
        finally:
            update.arrivals.release()
            if update.hold is not None:
                update.hold.end()

    def _raise_if_broken(self) -> None:
        if self._error is not None:
            raise self._error

    def _require_world(self, what: str) -> None:
        if self._torn:
            raise ConfigurationError(
                f"{what}() was called after a rollback that left weights of other ranks half new; call reform() "
                "on all ranks"
            )
        if isinstance(self._cut.context.group, UnjoinedOptimizerGroup):
            raise ConfigurationError(
                f"{what}() was called before this rank has received the state of the training ranks; pass "
                "the optimizer to the state of ringtrain.elastic, or call reform() on all ranks"
            )

    def _require_idle(self, what: str) -> None:
        self._raise_if_broken()
        self._end_update()
        if not self._cut.inbox.empty:
            left = "flush() or the missing micro-steps" if self._cut.context.settings.accumulate > 1 else "step()"
            raise ConfigurationError(f"{what}() was called in the middle of an update; call it after {left}")
