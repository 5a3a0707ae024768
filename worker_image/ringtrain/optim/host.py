"""Optimizer in host memory, which averages gradients over the ranks and then updates the weights."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ringtrain._core.negotiation.queues import LastUpdate
from ringtrain._core.process_groups.context import current_or_none
from ringtrain._core.process_groups.group import CollectiveGroup, Flat
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
from ringtrain.optim.cut import OptimizedModel, first_optimizer_group, make_cut
from ringtrain.optim.fused import FusedOptimizerUpdate
from ringtrain.optim.host_elastic import ElasticHostOptimizer
from ringtrain.optim.layout import ParamSpec
from ringtrain.optim.pipeline import OptimizerUpdate
from ringtrain.optim.reform import OwnOptimizerShard
from ringtrain.optim.rules import Rule, check_rule
from ringtrain.optim.schedules import Constant, Schedule
from ringtrain.optim.spans import ABSENT, is_gradient_absent
from ringtrain.optim.update_context import DeviceReducer
from ringtrain.step_time import REDUCTION

# 10 MiB. Shorter buckets cost processor time where that is scarce. With a backward pass as long as the transfer, the
# last bucket is reduced after it and delays the step by its length; see docs/decisions/0004-host-optimizer.md.
BUCKET_BYTES = 10 * 1024 * 1024


class HostOptimizer(ElasticHostOptimizer):
    """Average gradients over all ranks during the backward pass, and update the weights in host memory.

        opt = HostOptimizer(params, SGD(lr=0.1, momentum=0.9))
        forward(opt.weights); backward calls opt.submit(name, gradient) layer by layer; opt.step()

    `params`: initial arrays by name, in the order of the forward pass. They are copied into flat arenas;
    `opt.weights[name]` are the trained weights, views that change in place. Rank 0's values are sent to all ranks. The
    loss must be the mean over the rank's own batch: the optimizer averages over ranks. By default weights change only
    in `step()`.

    `update_during_backward`: whether a weight may change as soon as its gradient is submitted and reduced, which leaves
    less work for `step()`. If True, submit a gradient only after the backward pass has used its weight for the last
    time (in a dense layer: after the error of the layer below was computed), and neither read nor write weights between
    the first `submit` and the end of `step()`.
    `bucket_bytes`: gradients are reduced in buckets of about this size, in reverse registration order.
    `sharded`: whether each rank stores the state of only 1/size of the elements and updates those (reduce-scatter,
    update, all-gather). If False, each rank updates all elements; the results are bitwise equal.
    `accumulate`: number of calls of step() per update; the gradient is the mean of these micro-steps.
    `clip_norm`: largest global norm of the gradients after averaging; larger gradients are scaled down to it.
    `schedule`: factor on `rule.lr` as a function of the number of updates. `groups`: pairs of a rule and the names of
    parameters that use it instead of `rule`; all rules must be of one kind. `local`: names of parameters that are not
    synchronised: weights and state differ per rank, and are neither averaged, broadcast nor clipped.
    `check_finite`: whether gradients with NaN or infinity are refused, at the cost of one pass over them.
    `compression`: "bf16", "fp16" or "int8": float32 gradients and weight changes are sent in half or a quarter of the
    bytes. The rounding error is added in the next step (error feedback). Needs `sharded`.
    `elastic`: whether the world may change: `rollback` undoes a failed step, and `reform` continues in another world.
    `redundancy`: with `elastic`, the number of replicas of each shard, each in a different pod if there are enough
    pods. This number of ranks, or pods, may be lost at once. Each replica costs memory and one more transfer of the
    gradient.

    Collective: all ranks construct it with the same arguments; different arguments raise MismatchError. After an error
    in a step the weights may be partly updated; the optimizer refuses further use until `rollback`. Without `elastic`,
    restart the job from its checkpoint. A rank that joins a running training constructs it alone, and receives weights
    and state by `reform`; until then it refuses gradients.

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
            raise ConfigurationError(
                f'compression is "{compression}" with sharded=False; compression needs sharded=True'
            )
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
    def accumulating(self) -> bool:
        """Return whether gradients of an update that has not ended are stored, because more micro-steps will follow."""
        return not self._ending and not self._cut.inbox.empty

    @property
    def rate(self) -> float:
        """Return the learning rate of the first parameter group in the next update."""
        return self._rules[0].lr * self._factor()

    @property
    def gradient_norm(self) -> float | None:
        """Return the global gradient norm, before clipping, of the last update; None without `clip_norm`."""
        self._end_update()
        return self._norm

    @property
    def state_bytes(self) -> int:
        """Return the bytes of optimizer state on this rank."""
        return sum(values.nbytes for state in self._cut.context.arenas.state for values in state.values())

    @property
    def slots(self) -> list[str]:
        """Return the sorted names of a parameter's state arrays, such as `momentum`."""
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
        """Return whether `name` is a `local` parameter, of which each rank has its own values."""
        return self._cut.context.layout.locations[name][1].spec.local

    def allgather_object(self, value: Any, what: str) -> list[Any]:
        """Return the JSON-safe `value` of every rank, by rank. Collective, between updates."""
        self._require_idle(what)
        return self._cut.context.group.allgather_object(value, what)

    @property
    def has_gradient_memory(self) -> bool:
        """Return whether `gradient` can be used: not with `accumulate`, and not if devices reduce gradients."""
        context = self._cut.context
        return context.settings.accumulate == 1 and context.transfers.devices is None

    def gradient(self, name: str) -> Flat:
        """Return the array, in the parameter's shape and dtype, from which the gradient of `name` is reduced.

        A gradient that is computed into it need not be copied:

            np.matmul(rows.T, error, out=optimizer.gradient("w"))
            optimizer.submit("w", optimizer.gradient("w"))

        Its initial values are undefined. Call this in each step, from any thread: it waits for the end of a
        `step(wait=False)`, because ranks read the array until then. Raises ConfigurationError for an unknown gradient,
        for one that was submitted in this step, with `accumulate` or `devices`, and the error of a failed update.
        """
        self._raise_if_broken()
        self._require_world("gradient")
        self._end_update()
        if self._cut.context.transfers.devices is not None:
            raise ConfigurationError(
                f'gradient("{name}") was called, but gradients are reduced on the devices; call submit()'
            )
        return self._cut.inbox.room(name)

    def set_rules(self, rules: Sequence[Rule]) -> None:
        """Set the rules of all parameter groups for the next update. Only numbers such as `lr` may change.

        Local: every rank must set the same. Call it before `step()`; with `update_during_backward`, before the first
        gradient of an update.
        """
        names = self._model.state_names
        for index, (rule, before) in enumerate(zip(rules, self._rules, strict=True)):
            if rule is before or rule == before:
                continue
            check_rule(rule)
            missing = [name for name in rule.state_names if name not in names]
            if type(rule) is not type(before):
                raise ConfigurationError(
                    f"parameter group {index}: the rule is {rule}, but the optimizer was created with {before}; only "
                    "the rule's numbers may change. Create an optimizer with the new rule"
                )
            if missing:
                raise ConfigurationError(
                    f"parameter group {index}: the rule {rule} needs the state {missing}, which the optimizer has not "
                    "allocated; create the optimizer with this rule"
                )
        self._rules = tuple(rules)

    def gather_gradients(self) -> dict[str, Flat | None]:
        """Return the mean gradient of each parameter over ranks and micro-steps; None if no rank has a gradient.

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
        """Replace the mean gradients of the next update. If a gradient is None, its parameter does not change.

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
        """Discard the gradients submitted for the update that waits for `step()`. Call it on every rank."""
        hold = self._waiting_step("drop")
        hold.give_up()
        assert self._thread is not None
        with REDUCTION:
            self._thread.join()
        self._raise_if_broken()
        self._thread = self._update = None
        self._cut.inbox.begin_update()

    def require_last_micro_step(self, what: str) -> None:
        """Raise ConfigurationError, beginning with `what`, unless this is the last micro-step of an update."""
        if not self._cut.inbox.is_last_micro_step:
            raise ConfigurationError(
                f"{what} before the last of {self._cut.context.settings.accumulate} micro-steps, but "
                "the update needs all of them; do this only in the last micro-step"
            )

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Set the number of micro-steps per update, from the next update on (initially `accumulate`).

        Collective if the number changes.

        Valid for this world only: the next world, and ranks that join it, begin with `accumulate`. Raises
        ConfigurationError during an update, and MismatchError if ranks pass different numbers, because the mean would
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
                    f"{what}: passes={passes} on rank {group.rank}, but passes={other} on rank {rank}; "
                    "every rank must pass the same number"
                )
        self._cut = self._cut.accumulating(passes)

    def close(self) -> None:
        """Close the optimizer. Waits for an update whose step() was called, and cancels any other update."""
        with contextlib.suppress(Exception):  # the next call raises the step's error
            self._end_update()
        self._error = self._error or RingtrainError("the optimizer was closed")
        self._closed = True
        self._give_up()
        if (world := current_or_none()) is not None:
            world.attached(LastUpdate, LastUpdate).forget(self._cut.context.group)

    def _gather_in_update(self) -> None:
        assert isinstance(self._update, OptimizerUpdate)
        self._update.gather_gradients()
