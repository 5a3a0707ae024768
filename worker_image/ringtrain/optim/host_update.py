"""Update in progress of a host optimizer: gradients arrive, are reduced in a thread, and weights change."""

from __future__ import annotations

import contextvars
import math
import threading
import time
from collections.abc import Callable

from numpy.typing import ArrayLike

from ringtrain import timeline
from ringtrain._core.negotiation.queues import LastUpdate
from ringtrain._core.process_groups.context import current, drain_before_leaving
from ringtrain._core.process_groups.group import ProcessGroup
from ringtrain.errors import ConfigurationError, MismatchError
from ringtrain.optim.cut import OptimizedModel, OptimizerCut, UnjoinedOptimizerGroup
from ringtrain.optim.fused import FusedOptimizerUpdate
from ringtrain.optim.pipeline import OptimizerStepHold, OptimizerUpdate, UpdateAbandoned
from ringtrain.optim.rules import Rule
from ringtrain.optim.spans import StepRules
from ringtrain.optim.update_words import describe_update_mismatch
from ringtrain.step_time import REDUCTION, mark_background_thread


class HostOptimizerUpdate:
    """Part of `HostOptimizer` that receives gradients and makes updates."""

    _model: OptimizedModel
    _rules: tuple[Rule, ...]
    _cut: OptimizerCut
    _torn: frozenset[int]
    _updates: int
    _norm: float | None
    _update: OptimizerUpdate | FusedOptimizerUpdate | None
    _thread: threading.Thread | None
    _ending: bool
    _error: BaseException | None
    _step_began_ns: int
    _backward_began_ns: int

    @property
    def updates(self) -> int:
        """Return the number of completed updates, including those before a restored checkpoint.

        With `elastic`, a failed update does not count, and the call waits for an update whose step() did not wait.
        """
        if self._model.elastic and self._ending and self._thread is not None:
            self._thread.join()
        return self._updates - int(self._ending and self._error is not None)

    def submit(self, name: str, gradient: ArrayLike | None, weight: float = 1.0) -> None:
        """Submit the gradient of `name` for this step. May be called from any thread, in any order.

        The gradient is copied, unless it was computed into the array of `gradient(name)`. Pass None if this rank has no
        gradient for `name`; a parameter for which no rank has a gradient does not change, and neither does its state.

        After this call the parameter may change: the backward pass must no longer need it.
        `weight`: factor on this rank's gradient before averaging: `Batch.weight` of `ringtrain.data.shard`.
        The bucket's reduction starts when the bucket is complete and all earlier buckets have started. Raises
        ConfigurationError for a gradient of the wrong shape or dtype, and the error of a failed update.
        """
        self._submit(name, lambda: self._cut.inbox.put(name, gradient, weight))

    def submit_with(self, name: str, store: Callable[[], None], present: bool = True) -> None:
        """Submit the gradient of `name`, which `store` writes into the memory of the device reducer.

        `present`: whether this rank has a gradient. If not, `store` records that.
        """
        self._submit(name, lambda: self._cut.inbox.put_with(name, store, present))

    def _waiting_step(self, what: str) -> OptimizerStepHold:
        self._raise_if_broken()
        if not self.waits_for_step:
            raise ConfigurationError(
                f"{what}() was called when no update waits for step(); call {what}() after the last "
                "gradient and before step(), without update_during_backward"
            )
        self._cut.inbox.check_complete()
        assert self._update is not None
        assert self._update.hold is not None
        return self._update.hold

    @property
    def waits_for_step(self) -> bool:
        """Return whether an update waits for `step()` and has not changed weights yet."""
        held = self._update is not None and self._update.hold is not None
        return held and self._thread is not None and not self._ending

    def step(self, wait: bool = True) -> bool:
        """End the step, and update the weights after the last micro-step.

        Return True if an update was made and all weights are new; False while gradients are accumulated.

        `wait`: whether to wait until all weights are received. If False, call `wait_for` before reading each weight.
        Raises ConfigurationError if gradients are missing (submit them and call again), PeerLost or MismatchError if a
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
        """Let the update finish after all its gradients were submitted. `wait`: whether to wait for its end."""
        if self._thread is None or self._update is None:
            raise ConfigurationError("step() was called from two threads; call step() from only one thread")
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
        """Return the factor of the learning-rate schedule for the next update."""
        factor = self._model.settings.schedule(self._updates)
        if not math.isfinite(factor):
            raise ConfigurationError(f"schedule returned {factor} for step {self._updates}; expected a finite factor")
        return factor

    def wait_for(self, name: str | None = None) -> None:
        """Wait until the last step has updated the weight `name`, or all weights if `name` is None.

        Raises the same errors as `step`.
        """
        if name is None:
            self._end_update()
        elif self._ending and self._update is not None:
            self._update.arrivals.wait(self._cut.context.layout.locations[name][0])
            self._raise_if_broken()

    def drain(self) -> None:
        """Wait until an update whose step() was called has ended, successfully or not."""
        if self._ending and self._thread is not None:
            self._thread.join()

    def _settle(self) -> None:
        self._require_idle("join")

    def _give_up(self) -> None:
        """Cancel an update in progress whose step() was not called."""
        self._cut.inbox.cancel()
        if self._update is not None and self._update.hold is not None:
            self._update.hold.give_up()

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
        """Wait for an update whose step() was called, then prepare for the next update."""
        if not self._ending or self._thread is None or self._update is None:
            return
        with REDUCTION:
            self._thread.join()
        self._raise_if_broken()
        self._norm = self._update.norm
        self._thread = None
        self._ending = False
        self._cut.inbox.begin_update()

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
                f"{what}() was called after a rollback, when weights of other ranks may be partly updated; call "
                "reform() on all ranks"
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
            raise ConfigurationError(f"{what}() was called in the middle of an update; call {what}() after {left}")
