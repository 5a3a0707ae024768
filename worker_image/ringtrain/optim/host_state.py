"""State of a host optimizer for checkpoints, and weights that a program has changed."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from ringtrain._core.process_groups.group import Flat
from ringtrain.errors import ConfigurationError
from ringtrain.optim.gather_state import OptimizerStateRequest, gather_state
from ringtrain.optim.host_update import HostOptimizerUpdate
from ringtrain.optim.state import merged_missed_steps, restore_state, shard_state
from ringtrain.step_time import REDUCTION


class SavedHostOptimizer(HostOptimizerUpdate):
    """Part of `HostOptimizer` that saves and loads its state."""

    _views: dict[str, Flat]

    @property
    def weights(self) -> Mapping[str, Flat]:
        """Return the weights by name. They are views of host memory that each update changes.

        Do not write to them during a step.
        """
        return MappingProxyType(self._views)

    def flush(self, takes_weights: bool = False) -> bool:
        """Update the weights from the micro-steps submitted up to now, even if they are fewer than `accumulate`.

        Return False if there were none. Every rank must call this after the same number of micro-steps.
        `takes_weights`: whether to call `take_weights` before the update.
        """
        self._raise_if_broken()
        self._end_update()
        if self._cut.context.transfers.devices is not None:
            raise ConfigurationError(
                "flush() was called, but gradients are reduced on the devices; complete all micro-steps"
            )
        if not self._cut.inbox.flush():
            return False
        self._start_update()
        if takes_weights and self.waits_for_step:
            self.take_weights()
        self._finish(wait=True)
        return True

    def state_dict(self, root: int | None = None, error_feedback: bool = True) -> dict[str, Any]:
        """Gather the complete weights and state of all ranks by name. Collective, between updates.

        `root`: the only rank that receives them; the others get {} and need no memory for them. If None, every rank
        receives them. `error_feedback`: whether the rounding errors of `compression` are gathered too: for each rank an
        array as long as the weights, and one more array of this length. Without them a resumed training produces other
        weights than an uninterrupted one. Raises StateCorrupt, on every rank, if weights that must be equal on all
        ranks differ.
        """
        self._require_world("state_dict")
        self._require_idle("state_dict")
        replicas = self._cut.replicas if self._model.sharded else None  # unsharded, a rank may call this alone
        digest = replicas.digest() if replicas is not None else None
        wanted = OptimizerStateRequest(self._updates, self._model.rule_name, root, error_feedback, digest)
        return gather_state(self._cut.context, wanted)

    def shard_dict(self, error_feedback: bool = True) -> dict[str, Any]:
        """Copy this rank's part of weights and state, for `ShardedCheckpoints`. Not collective; between updates.

        The parts of all ranks together form the `state_dict`, which `load_state_dict` accepts at any number of ranks.
        `error_feedback`: see `state_dict`.
        """
        self._require_world("shard_dict")
        self._require_idle("shard_dict")
        return shard_state(self._cut.context, self._updates, self._model.rule_name, error_feedback)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set weights, state and number of updates from a `state_dict`, saved with any number of ranks. Not collective.

        Error feedback of compression is restored: bitwise in a world of the same size; in another size each rank gets
        the mean over the ranks that saved it; a single rank, which compresses nothing, drops it.
        Raises ConfigurationError, with nothing changed, if the state belongs to another rule or model.
        """
        self._require_idle("load_state_dict")
        self._updates, missed = restore_state(self._cut.context, self._model.rule_name, state)
        self._cut.begin_at(self._updates, missed)

    def scale_state(self, slot: str, factor: float) -> None:
        """Multiply the state array `slot` of all parameters by `factor`. Not collective, but all ranks must call it.

        Raises ConfigurationError with `elastic`, because replicas of shards would keep the old values.
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
        """Use weights that the caller has changed in place, to the same values on all ranks.

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
        """Copy those of `values` that differ bitwise from the weights, then call `take_weights`.

        Raises ConfigurationError for values of another shape or dtype.
        """
        is_set = False
        for name, value in values.items():
            held = self.weights[name]
            if (held.shape, held.dtype) != (value.shape, value.dtype):
                raise ConfigurationError(
                    f"weight {name!r} is {value.dtype}{list(value.shape)}; expected {held.dtype}{list(held.shape)}, "
                    "as at the start of training"
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
