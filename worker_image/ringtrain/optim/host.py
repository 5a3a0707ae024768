"""The optimizer that lives in host memory: gradients in, reduced over the ring, new weights out."""

from __future__ import annotations

import contextlib
import contextvars
import threading
import time
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from numpy.typing import ArrayLike

from ringtrain import timeline
from ringtrain.compression import HALVES, INT8
from ringtrain.errors import ConfigurationError, RingtrainError
from ringtrain.optim.arenas import Arenas
from ringtrain.optim.arguments import Params, Settings, as_arrays, check_arguments, check_rule, described
from ringtrain.optim.compiled import best_kernels
from ringtrain.optim.fused import FusedUpdate, can_fuse
from ringtrain.optim.inbox import Inbox
from ringtrain.optim.layout import Layout, ParamSpec, plan_layout
from ringtrain.optim.pipeline import Abandoned, Update, UpdateContext
from ringtrain.optim.rules import Rule
from ringtrain.optim.schedules import Constant, Schedule
from ringtrain.optim.state import check_same_model, gather_state, restore_state
from ringtrain.optim.wire import ByteWire, HalfWire, Wire
from ringtrain.process_groups.group import Flat, Group
from ringtrain.process_groups.process_sets import group_of

# 10 MiB: shorter ones cost processor time where that is scarce; with a backward pass as long as the wire, the
# longest bucket is what is left to do at its end; see docs/decisions/0004-host-optimizer.md.
BUCKET_BYTES = 10 * 1024 * 1024


class HostOptimizer:
    """Average gradients over all ranks and update the weights in host memory while the backward pass goes on.

        opt = HostOptimizer(params, SGD(lr=0.1, momentum=0.9))
        forward(opt.weights); backward calls opt.submit(name, gradient) layer by layer; opt.step()

    `params`: initial arrays by name, in the order of the forward pass. They are copied into flat arenas;
    `opt.weights[name]` are the trained weights, views that change in place. Rank 0's values are sent to all ranks.
    The loss is the mean over the rank's own batch: averaging over ranks happens here.
    A weight may change from the moment its gradient is submitted, so submit it after the backward pass has used
    the weight for the last time: in a dense layer, after the error of the layer below was computed.

    `bucket_bytes`: gradients are reduced in buckets of about this size, in reverse registration order.
    `sharded`: each rank keeps the state of 1/size of the elements and updates those (reduce-scatter, update,
    all-gather). Unsharded, each rank updates all; the bits are the same.
    `accumulate`: step() that often per update; the gradient is the mean of the micro-steps.
    `clip_norm`: scale gradients so that their global norm after averaging is at most this.
    `schedule`: factor on `rule.lr` by number of updates done. `local`: names that are never synchronised: their
    weights and state are each rank's own, neither averaged, broadcast nor clipped.
    `check_finite`: refuse gradients with NaN or infinity, at the price of one pass.
    `compression`: "bf16", "fp16" or "int8": float32 gradients and changes of weights travel in half or a quarter
    of the bytes, and what rounding takes away is added the next time. Needs `sharded`.

    Collective: all ranks construct it with the same arguments, else MismatchError. After an error in a step the
    weights may be half new; the optimizer refuses further use, and the job starts again from its checkpoint.

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
        local: Collection[str] = (),
        check_finite: bool = False,
        compression: str | None = None,
        group: Group | None = None,
    ) -> None:
        arrays = as_arrays(params)
        settings = Settings(accumulate, clip_norm, schedule or Constant(), check_finite)
        check_arguments(arrays, local, bucket_bytes, settings)
        check_rule(rule)
        group = group or group_of()
        specs = [ParamSpec(name, array.shape, array.dtype, name in local) for name, array in arrays.items()]
        layout = plan_layout(specs, bucket_bytes, group.size)
        if compression is not None and not sharded:
            raise ConfigurationError(
                f'compression is "{compression}" with sharded=False; compression needs shards'
            )
        compared = {
            "rule": rule, "bucket_bytes": bucket_bytes, "sharded": sharded, "accumulate": accumulate,
            "compression": compression, "clip_norm": clip_norm, "schedule": settings.schedule,
        }  # fmt: skip
        check_same_model(group, layout, {name: described(value) for name, value in compared.items()})
        arenas = Arenas(layout, rule.state_names, group.rank if sharded else None, group)
        lane = group.beside() if group.size > 1 else None
        wire = None if compression is None else _wire((group, lane or group), layout, arenas, compression)
        self._context = UpdateContext(group, layout, arenas, rule, settings, best_kernels(), sharded, wire, lane)
        self._fused = can_fuse(self._context)
        self._inbox = Inbox(layout, arenas, group.rank, settings)
        self._updates = 0
        self._norm: float | None = None
        self._update: Update | FusedUpdate | None = None
        self._thread: threading.Thread | None = None
        self._ending = False
        self._error: BaseException | None = None

        self._step_began_ns = self._backward_began_ns = time.perf_counter_ns()
        self._views: dict[str, Flat] = {}
        for name, array in arrays.items():
            bucket, location = layout.locations[name]
            view = arenas.weights(bucket)[location.start : location.stop].reshape(array.shape)
            view[...] = array
            self._views[name] = view
        if group.size > 1:
            for arena in arenas.synced_arenas():
                group.broadcast(arena)
        arenas.refresh_masters(layout.buckets)

    @property
    def weights(self) -> Mapping[str, Flat]:
        """The weights by name: views of the arena, new after each update. Do not write to them during a step."""
        return MappingProxyType(self._views)

    @property
    def updates(self) -> int:
        """Updates done so far, those before a restored checkpoint included."""
        return self._updates

    @property
    def rate(self) -> float:
        """The learning rate of the next update."""
        return self._context.rule.lr * self._context.settings.schedule(self._updates)

    @property
    def gradient_norm(self) -> float | None:
        """Global gradient norm of the last update before clipping; None without `clip_norm`."""
        self._end_update()
        return self._norm

    @property
    def state_bytes(self) -> int:
        """Bytes of optimizer state that this rank holds."""
        return sum(values.nbytes for state in self._context.arenas.state for values in state.values())

    def submit(self, name: str, gradient: ArrayLike, weight: float = 1.0) -> None:
        """Hand over the gradient of `name` for this step; it is copied. From any thread, in any order.

        From here on the parameter may change: the backward pass must not need it any more.
        `weight`: factor on this rank's gradient before it is averaged: `Batch.weight` of `ringtrain.data.shard`.
        Its bucket's reduction starts as soon as the bucket is complete and all earlier buckets have started.
        Raises ConfigurationError for a gradient that does not fit, and what made the update fail.
        """
        self._raise_if_broken()
        self._end_update()
        if self._inbox.empty:
            self._backward_began_ns = time.perf_counter_ns()
        with timeline.span(f"submit {name}", "submit"):
            first = self._inbox.put(name, gradient, weight)
        if first:
            self._start_update()

    def step(self, wait: bool = True) -> bool:
        """End the step. True: an update was made, all weights are new. False: gradients are being accumulated.

        `wait=False`: return while weights are still on their way; `wait_for` each before it is read. Raises
        ConfigurationError when gradients are missing (submit them and call again), PeerLost or MismatchError when
        the ring failed.
        """
        self._raise_if_broken()
        self._end_update()
        timeline.record_since(self._backward_began_ns, "backward", "backward")
        if not self._inbox.end_micro_step():
            return False
        if self._thread is None or self._update is None:
            raise ConfigurationError("step() was called from two threads; call it from one")
        self._updates += 1
        self._ending = True
        if wait:
            self._end_update()
        self._step_began_ns = timeline.step_ended(self._step_began_ns, self._updates)
        return True

    def wait_for(self, name: str | None = None) -> None:
        """Return when the weight `name` (None: every weight) is that of the last step. Raises what `step`
        raises.
        """
        if name is None:
            self._end_update()
        elif self._ending and self._update is not None:
            self._update.arrivals.wait(self._context.layout.locations[name][0])
            self._raise_if_broken()

    def close(self) -> None:
        """Give up an update that is under way, unless its step() was called: then return when that has ended."""
        with contextlib.suppress(Exception):  # what made the step fail is raised by whatever comes next
            self._end_update()
        self._error = self._error or RingtrainError("the optimizer was closed")
        self._inbox.cancel()

    def state_dict(self, root: int | None = None, error_feedback: bool = True) -> dict[str, Any]:
        """Gather weights and state of all ranks, whole and by name. Collective, between updates.

        `root`: only this rank gets them, the others get {} and need no memory for them; None: every rank does.
        `error_feedback`: with `compression`, also what rounding took away and is still to be added: an array as
        long as the weights for each rank, and one more. Without it a resumed training goes on with other weights
        than one that was not interrupted.
        """
        self._require_idle("state_dict")
        return gather_state(self._context, self._updates, root, error_feedback)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set weights, state and count of updates from a `state_dict`, of any world size. Not collective.

        What compression owed is owed again: in a world of the same size to the bit; in one of another size each
        rank owes the mean of what the ranks owed; on a single rank, which compresses nothing, it is dropped.
        Raises ConfigurationError, with nothing changed, when it is of another rule or model.
        """
        self._require_idle("load_state_dict")
        self._updates = restore_state(self._context, state)

    def _start_update(self) -> None:
        kind = FusedUpdate if self._fused else Update
        self._update = kind(self._context, self._inbox, self._updates + 1, self.rate)
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

    def _end_update(self) -> None:
        """Wait for an update whose step has ended, and make way for the next."""
        if not self._ending or self._thread is None or self._update is None:
            return
        self._thread.join()
        self._raise_if_broken()
        self._norm = self._update.norm
        self._thread = None
        self._ending = False
        self._inbox.begin_update()

    def _run(self, update: Update | FusedUpdate) -> None:
        try:
            update.run()
        except Abandoned:
            return
        except BaseException as error:
            self._error = error
        finally:
            update.arrivals.release()

    def _raise_if_broken(self) -> None:
        if self._error is not None:
            raise self._error

    def _require_idle(self, what: str) -> None:
        self._raise_if_broken()
        self._end_update()
        if not self._inbox.empty:
            raise ConfigurationError(f"{what}() was called in the middle of an update; call it after step()")


def _wire(groups: tuple[Group, Group], layout: Layout, arenas: Arenas, compression: str) -> Wire:
    """Raises ConfigurationError for an unknown `compression`."""
    if compression == INT8:
        return ByteWire(*groups, layout, arenas)
    if compression not in HALVES:
        allowed = ", ".join([*HALVES, INT8])
        raise ConfigurationError(f'compression is "{compression}"; expected one of {allowed}')
    return HalfWire(*groups, layout, arenas, compression)
