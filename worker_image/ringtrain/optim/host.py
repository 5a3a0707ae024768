"""The optimizer that lives in host memory: gradients in, reduced over the ring, new weights out."""

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
from ringtrain.optim.update_words import in_words_of_updates
from ringtrain.step_time import REDUCTION, beside_training

# 10 MiB: shorter ones cost processor time where that is scarce; with a backward pass as long as the wire, the
# longest bucket is what is left to do at its end; see docs/decisions/0004-host-optimizer.md.
BUCKET_BYTES = 10 * 1024 * 1024


class HostOptimizer:
    """Average gradients over all ranks while the backward pass goes on, and update the weights in host memory.

        opt = HostOptimizer(params, SGD(lr=0.1, momentum=0.9))
        forward(opt.weights); backward calls opt.submit(name, gradient) layer by layer; opt.step()

    `params`: initial arrays by name, in the order of the forward pass. They are copied into flat arenas;
    `opt.weights[name]` are the trained weights, views that change in place. Rank 0's values are sent to all ranks.
    The loss is the mean over the rank's own batch: averaging over ranks happens here.
    Weights change in `step()` and nowhere else.

    `update_during_backward`: True lets a weight change as soon as its gradient is submitted and reduced, which
    leaves less to do in `step()`. Submit a gradient after the backward pass has used its weight for the last time (in
    a dense layer: after the error of the layer below was computed), and neither read nor write weights between the
    first `submit` and the end of `step()`.
    `bucket_bytes`: gradients are reduced in buckets of about this size, in reverse registration order.
    `sharded`: each rank keeps the state of 1/size of the elements and updates those (reduce-scatter, update,
    all-gather). Unsharded, each rank updates all; the bits are the same.
    `accumulate`: step() that often per update; the gradient is the mean of the micro-steps.
    `clip_norm`: scale gradients so that their global norm after averaging is at most this.
    `schedule`: factor on `rule.lr` by number of updates done. `groups`: pairs of a rule and the names of
    parameters that have it in the place of `rule`, all rules of one kind. `local`: names that are never
    synchronised: their weights and state are each rank's own, neither averaged, broadcast nor clipped.
    `check_finite`: refuse gradients with NaN or infinity, at the price of one pass.
    `compression`: "bf16", "fp16" or "int8": float32 gradients and changes of weights travel in half or a quarter
    of the bytes, and what rounding takes away is added the next time. Needs `sharded`.
    `elastic`: its world may change: `rollback` undoes a step that failed, and `reform` goes on in another world.
    `redundancy`: of an elastic one's shards, how many other ranks have a copy, each in a pod of its own as far as
    there are pods: so many ranks, or pods, may be lost at once. Each costs its memory, and a gradient on the wire.

    Collective: all ranks construct it with the same arguments, else MismatchError. After an error in a step the
    weights may be half new; the optimizer refuses further use until `rollback`. Without `elastic` the job starts
    again from its checkpoint. A rank that joins others which train already makes it alone, and gets weights and
    state by `reform`; until then it refuses gradients.

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
        """The weights by name: views of the arena, new after each update. Do not write to them during a step."""
        return MappingProxyType(self._views)

    @property
    def updates(self) -> int:
        """Updates done so far, those before a restored checkpoint included.

        With `elastic`, without one that has failed; one whose step() does not wait is waited for.
        """
        if self._model.elastic and self._ending and self._thread is not None:
            self._thread.join()
        return self._updates - int(self._ending and self._error is not None)

    @property
    def accumulating(self) -> bool:
        """Whether gradients of an update that has not been made are here: some of its micro-steps are missing."""
        return not self._ending and not self._cut.inbox.empty

    @property
    def rate(self) -> float:
        """The learning rate of the next update, of the first group of parameters."""
        return self._rules[0].lr * self._factor()

    @property
    def gradient_norm(self) -> float | None:
        """Global gradient norm of the last update before clipping; None without `clip_norm`."""
        self._end_update()
        return self._norm

    @property
    def state_bytes(self) -> int:
        """Bytes of optimizer state that this rank holds."""
        return sum(values.nbytes for state in self._cut.context.arenas.state for values in state.values())

    @property
    def slots(self) -> list[str]:
        """What a state has for every parameter, weights aside."""
        return sorted({slot for state in self._cut.context.arenas.state for slot in state})

    @property
    def rule_name(self) -> str:
        """What a state is of."""
        return self._model.rule_name

    @property
    def size(self) -> int:
        """How many ranks train together."""
        return self._cut.context.group.size

    def is_local(self, name: str) -> bool:
        """Whether each rank has its own values of `name`."""
        return self._cut.context.layout.locations[name][1].spec.local

    def allgather_object(self, value: Any, what: str) -> list[Any]:
        """Return every rank's JSON-safe `value`, by rank. Collective, between updates."""
        self._require_idle(what)
        return self._cut.context.group.allgather_object(value, what)

    def gradient(self, name: str) -> Flat:
        """Return the memory from which the gradient of `name` is reduced, in the parameter's shape and dtype: what
        is made there need not be copied.

            np.matmul(rows.T, error, out=optimizer.gradient("w"))
            optimizer.submit("w", optimizer.gradient("w"))

        It has no values to start with. Ask for it in each step, from any thread: this waits for the end of a step
        that did not wait, in which ranks still read it. Raises ConfigurationError for a gradient that is unknown,
        or was submitted in this step, with `accumulate` or `devices`, and what made the update fail.
        """
        self._raise_if_broken()
        self._require_world("gradient")
        self._end_update()
        if self._cut.context.transfers.devices is not None:
            raise ConfigurationError(f'gradient("{name}") was asked for, and gradients are reduced on the devices')
        return self._cut.inbox.room(name)

    def submit(self, name: str, gradient: ArrayLike | None, weight: float = 1.0) -> None:
        """Hand over the gradient of `name` for this step. It is copied, unless it was made in the memory of
        `gradient(name)`. From any thread, in any order. None: this rank has none; a parameter that no rank has a
        gradient of stays as it is, and so does its state.

        From here on the parameter may change: the backward pass must not need it any more.
        `weight`: factor on this rank's gradient before it is averaged: `Batch.weight` of `ringtrain.data.shard`.
        Its bucket's reduction starts as soon as the bucket is complete and all earlier buckets have started.
        Raises ConfigurationError for a gradient that does not fit, and what made the update fail.
        """
        self._submit(name, lambda: self._cut.inbox.put(name, gradient, weight))

    def submit_with(self, name: str, store: Callable[[], None], present: bool = True) -> None:
        """`submit` of a gradient that `store` takes to where the device reducer has it. `present`: False: it
        stores that there is none."""
        self._submit(name, lambda: self._cut.inbox.put_with(name, store, present))

    def set_rules(self, rules: Sequence[Rule]) -> None:
        """Change parameters by these rules from the next update on, one for each group: other numbers of the same
        kind. Local: every rank sets the same. Before `step()`; with `update_during_backward` before the first
        gradient of an update."""
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
        """Return the mean gradient of each parameter over all ranks and micro-steps, None where no rank has one.

        Views of memory from which the update is made: what is written there counts. All gradients must have been
        submitted, and weights must wait for `step()`. Collective.
        """
        with REDUCTION:
            self._held("gather_gradients").call(self._gather_held).wait()
        self._raise_if_broken()
        arenas, found = self._cut.context.arenas, {}
        for name, (bucket, location) in self._cut.context.layout.locations.items():
            values = arenas.gradients(bucket)[location.start : location.stop]
            absent = not values.size or is_gradient_absent(values)
            found[name] = None if absent else values.reshape(location.spec.shape)
        return found

    def replace_gradients(self, gradients: Mapping[str, Flat | None]) -> None:
        """Update by these mean gradients, None for a parameter that stays as it is: after `gather_gradients`, and
        the same on all ranks. Local."""
        for name, values in gradients.items():
            bucket, location = self._cut.context.layout.locations[name]
            own = self._cut.context.arenas.gradients(bucket)[location.start : location.stop]
            if values is None:
                own[...] = ABSENT
            elif own.size:
                own[...] = values.reshape(-1)  # numpy copies nothing where both are the same memory
                self._cut.inbox.mark(name, own)

    def drop(self) -> None:
        """Forget the gradients that were submitted for an update that waits for `step()`. Every rank does."""
        hold = self._held("drop")
        hold.give_up()
        assert self._thread is not None
        with REDUCTION:
            self._thread.join()
        self._raise_if_broken()
        self._thread = self._update = None
        self._cut.inbox.begin_update()

    def require_last_micro_step(self, what: str) -> None:
        """Raise ConfigurationError, which begins with `what`, where more micro-steps of an update are to come."""
        if not self._cut.inbox.is_last_micro_step:
            raise ConfigurationError(
                f"{what} in one of the first of {self._cut.context.settings.accumulate} micro-steps, and the update is "
                "made of all of them: do it in the last one"
            )

    def _held(self, what: str) -> OptimizerStepHold:
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
        """Whether the next `step()` makes an update, and no weight has changed for it yet."""
        held = self._update is not None and self._update.hold is not None
        return held and self._thread is not None and not self._ending

    def flush(self, takes_weights: bool = False) -> bool:
        """With `accumulate`: make an update of the micro-steps there were so far, which are less. True: an update
        was made; False: there were none. Every rank does after as many. `takes_weights`: as `take_weights`."""
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
        """End the step. True: an update was made, all weights are new. False: gradients are being accumulated.

        `wait=False`: return while weights are still on their way; `wait_for` each before it is read. Raises
        ConfigurationError when gradients are missing (submit them and call again), PeerLost or MismatchError when
        the ring failed.
        """
        self._raise_if_broken()
        self._end_update()
        timeline.record_since(self._backward_began_ns, "backward", "backward")
        if not self._cut.inbox.end_micro_step():
            return False
        self._finish(wait)
        return True

    def _finish(self, wait: bool) -> None:
        """All gradients of the update are here."""
        if self._thread is None or self._update is None:
            raise ConfigurationError("step() was called from two threads; call it from one")
        if self._update.hold is not None:
            rules = self._step_rules()
            self._note_rates(rules)
            self._update.hold.go_on(rules)
        self._updates += 1
        self._ending = True
        group = self._cut.context.group
        if isinstance(group, ProcessGroup) and group.size > 1:
            current().attached(LastUpdate, LastUpdate).note(group, self._settle, in_words_of_updates)
        if not wait:
            drain_before_leaving(self)
        self._cut.context.transfers.order.overlaps = not wait
        if wait:
            self._end_update()
        self._step_began_ns = timeline.step_ended(self._step_began_ns, self._updates)

    def _step_rules(self) -> StepRules:
        return StepRules(self._updates + 1, self._factor(), self._rules, self._model.group_of)

    def _factor(self) -> float:
        """What the schedule has for the next update."""
        factor = self._model.settings.schedule(self._updates)
        if not math.isfinite(factor):
            raise ConfigurationError(f"schedule gave {factor} for step {self._updates}; expected a finite factor")
        return factor

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Take `passes` micro-steps an update from the next one on, as `accumulate` does. Collective where it is
        another number than before.

        For this world: the next one begins with `accumulate` again, and newcomers do. Between updates, else
        ConfigurationError. Raises MismatchError where ranks take different numbers: the mean would be wrong.
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
        """Return when the weight `name` (None: every weight) is that of the last step. Raises what `step`
        raises.
        """
        if name is None:
            self._end_update()
        elif self._ending and self._update is not None:
            self._update.arrivals.wait(self._cut.context.layout.locations[name][0])
            self._raise_if_broken()

    def drain(self) -> None:
        """Return when an update whose step() was called has ended, however it ended."""
        if self._ending and self._thread is not None:
            self._thread.join()

    def _settle(self) -> None:
        self._require_idle("join")

    def close(self) -> None:
        """Give up an update that is under way, unless its step() was called: then return when that has ended."""
        with contextlib.suppress(Exception):  # what made the step fail is raised by whatever comes next
            self._end_update()
        self._error = self._error or RingtrainError("the optimizer was closed")
        self._closed = True
        self._give_up()
        if (world := current_or_none()) is not None:
            world.attached(LastUpdate, LastUpdate).forget(self._cut.context.group)

    def _give_up(self) -> None:
        """Let an update end whose step was not called."""
        self._cut.inbox.cancel()
        if self._update is not None and self._update.hold is not None:
            self._update.hold.give_up()

    def state_dict(self, root: int | None = None, error_feedback: bool = True) -> dict[str, Any]:
        """Gather weights and state of all ranks, whole and by name. Collective, between updates.

        `root`: only this rank gets them, the others get {} and need no memory for them; None: every rank does.
        `error_feedback`: with `compression`, also what rounding took away and is still to be added: an array as
        long as the weights for each rank, and one more. Without it a resumed training goes on with other weights
        than one that was not interrupted.
        Raises StateCorrupt, on every rank, where weights that all ranks have are not the same.
        """
        self._require_world("state_dict")
        self._require_idle("state_dict")
        replicas = self._cut.replicas if self._model.sharded else None  # else a rank may call it alone
        digest = replicas.digest() if replicas is not None else None
        wanted = OptimizerStateRequest(self._updates, self._model.rule_name, root, error_feedback, digest)
        return gather_state(self._cut.context, wanted)

    def shard_dict(self, error_feedback: bool = True) -> dict[str, Any]:
        """Copy this rank's part of weights and state, for a checkpoint below a URI. Not collective; between
        updates.

        What all ranks give together is the `state_dict`, which `load_state_dict` takes at any number of ranks.
        """
        self._require_world("shard_dict")
        self._require_idle("shard_dict")
        return shard_state(self._cut.context, self._updates, self._model.rule_name, error_feedback)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set weights, state and count of updates from a `state_dict`, of any world size. Not collective.

        What compression owed is owed again: in a world of the same size to the bit; in one of another size each
        rank owes the mean of what the ranks owed; on a single rank, which compresses nothing, it is dropped.
        Raises ConfigurationError, with nothing changed, when it is of another rule or model.
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
                f"scale_state: the {slot} of a HostOptimizer with elastic=True can't be scaled: its replicas have no "
                "part in it. Pass momentum_correction=False to the callback that changes the learning rate"
            )
        self._require_idle("scale_state")
        for state in self._cut.context.arenas.state:
            if slot in state:
                state[slot] *= factor

    def take_weights(self) -> None:
        """Go on from what somebody has set weights to, in place, the same on all ranks. Local, between updates, or
        before the `step()` that an update waits for.

        Without `elastic` there is nothing to do: an update reads the weights that are there. With it a rank takes
        them for the shard that it is the second home of, and the updates so far can't be undone any more.
        """
        if self._cut.context.shard.undo is None:
            return
        if not self.waits_for_step:
            self._require_idle("take_weights")
            self._take_weights()
            return
        with REDUCTION:
            self._held("take_weights").call(self._take_weights).wait()
        self._raise_if_broken()

    def take_weights_from(self, values: Mapping[str, Flat]) -> None:
        """Copy `values`, by name, where their bits differ from the weights', and go on from them as `take_weights`.

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
            bits = f"u{held.itemsize}"  # a NaN equals itself
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
        """Let `rollback` go back to the rules as they are now."""
        self._committed = self._rules

    def rollback(self, to: int | None = None) -> int:
        """Give up the update that is under way, set this rank's part of weights and state to those after update
        `to`, and return that. Local; needs `elastic`.

        `to`: `updates` (also None), or `updates - 1`, for a rank that ended an update which another one did not.
        Gradients and micro-steps that were submitted since are forgotten, and so is the error of a step. Where an
        update had begun to change weights, those of other ranks' shards are whole again after `reform`.
        An update whose step() was called is waited for: its world must have failed, or have all its ranks.
        """
        undo = self._cut.context.shard.undo
        if undo is None:
            raise ConfigurationError("rollback() needs HostOptimizer(elastic=True), which keeps what it undoes")
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
            else:  # whether the others have done that update is not known: it may have to be undone as well
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
        """Have ranks that stay keep what only the ranks `leaving` hold, for `prepare` in the next world.
        Collective, after the same update on all ranks; for `elastic`."""
        self._require_idle("hand_over")
        hand_over_shards(self._cut.context, self._updates, leaving)

    def reform(self, group: CollectiveGroup, former: Sequence[int | None]) -> None:
        """Go on in the world of `group`: `prepare`, then `adopt`. Collective."""
        self.prepare(group, former)
        self.adopt()

    def prepare(self, group: CollectiveGroup, former: Sequence[int | None]) -> None:
        """Bring weights and state into the world of `group`, beside those of this one. Collective; for `elastic`.

        `former`: of each rank there, the rank that it had in the world whose state counts; None for a newcomer.
        Survivors call `rollback` to the same update before. Only what a rank has not got yet travels. Nothing of
        the present state changes: when a rank is lost meanwhile, PeerLost, it can be prepared again.

        Raises StateLost, on every rank, when a shard is on none of them; MismatchError where survivors are at
        different updates, or a newcomer has another model.
        """
        if self._cut.context.shard.undo is None:
            raise ConfigurationError("reform() needs HostOptimizer(elastic=True)")
        self._require_idle("reform")
        self._prepared = None
        own = OwnOptimizerShard(self._cut, self._updates, self._torn)
        self._prepared = move_into_optimizer_cut(self._model, group, former, own)

    def adopt(self) -> None:
        """Go on with what `prepare` brought. Local. `weights` has other arrays from now on."""
        if self._prepared is None:
            raise ConfigurationError("adopt() was called, but nothing is prepared; call prepare() on all ranks")
        self._cut, self._updates, self._torn = self._prepared.cut, self._prepared.updates, self._prepared.torn
        self._views.update(self._cut.views)
        self._prepared = None

    def discard(self) -> None:
        """Forget what `prepare` brought. Local."""
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
        self._note_rates(rules)
        if not context.settings.update_during_backward:
            self._update = OptimizerUpdate(context, inbox, rules, OptimizerStepHold())
        elif self._cut.fused:
            self._update = FusedOptimizerUpdate(context, inbox, rules, self._cut.fused)
        else:
            self._update = OptimizerUpdate(context, inbox, rules)
        # A thread per update: it costs 0.1 ms and leaves nothing to close. Daemon, because a backward pass that
        # raises would leave it waiting for gradients for ever.
        # In the caller's context, where a process that holds several ranks keeps which one this is.
        self._thread = threading.Thread(
            target=contextvars.copy_context().run,
            args=(self._run, self._update),
            name="ringtrain-update",
            daemon=True,
        )
        self._thread.start()

    def _note_rates(self, rules: StepRules) -> None:
        if self._cut.replicas is not None:
            self._cut.replicas.uses(rules.number, [rule.lr * rules.factor for rule in rules.rules])

    def _end_update(self) -> None:
        """Wait for an update whose step has ended, and make way for the next."""
        if not self._ending or self._thread is None or self._update is None:
            return
        with REDUCTION:
            self._thread.join()
        self._raise_if_broken()
        self._norm = self._update.norm
        self._thread = None
        self._ending = False
        self._cut.inbox.begin_update()

    def _gather_held(self) -> None:
        assert isinstance(self._update, OptimizerUpdate)
        self._update.gather_gradients()

    def _run(self, update: OptimizerUpdate | FusedOptimizerUpdate) -> None:
        beside_training()
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
            self._error = in_words_of_updates(error)
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
                f"{what}() was called before this rank has got the state of the ranks that train already; give "
                "the optimizer to the state of ringtrain.elastic, or call reform() on all ranks"
            )

    def _require_idle(self, what: str) -> None:
        self._raise_if_broken()
        self._end_update()
        if not self._cut.inbox.empty:
            left = "flush() or the missing micro-steps" if self._cut.context.settings.accumulate > 1 else "step()"
            raise ConfigurationError(f"{what}() was called in the middle of an update; call it after {left}")
