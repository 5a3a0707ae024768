"""Change of the world of a torch HostOptimizer: undo a step, and continue with other ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ringtrain.adapter import CollectiveGroup, OnHostOptimizer
from ringtrain.optim import HostOptimizer as ArrayOptimizer
from ringtrain_torch.gradient_stream import TorchGradientStream
from ringtrain_torch.host_state import carried_group_options, simple_options
from ringtrain_torch.weight_stream import TorchWeightStream


class ElasticTorchHostOptimizer(OnHostOptimizer):
    """Part of the torch `HostOptimizer` that undoes steps and moves to another world."""

    param_groups: list[dict[str, Any]]
    _host: ArrayOptimizer
    _gradients: TorchGradientStream
    _weights: TorchWeightStream
    _committed: list[dict[str, Any]]

    def rollback(self, to: int | None = None) -> int:
        """Discard the step in progress. Restore the weights and state after the last completed update or the one
        before, as `ringtrain.optim.HostOptimizer.rollback` does, and the groups of the last `commit()`. Not collective.
        """
        self._gradients.forget()
        updates = self._host.rollback(to)
        self._weights.expect()
        self._set_options(self._committed)
        return updates

    def commit(self) -> None:
        """Store the current parameter groups for `rollback`."""
        self._committed = [simple_options(group) for group in self.param_groups]

    def prepare(self, group: CollectiveGroup, former: Sequence[int | None]) -> None:
        """Reshard weights, state and parameter groups for the new world; the copies for the old world stay in use until
        `adopt()`. Collective in the process set. `group` is not used, because the optimizer opens a separate process
        group.
        """
        opened = self._groups.open()
        self._host.prepare(opened, former)
        told = opened.allgather_object([simple_options(own) for own in self.param_groups], "parameter groups")
        survivors = [rank for rank, before in enumerate(former) if before is not None]
        self._prepared = told[survivors[0] if survivors else 0]

    def adopt(self) -> None:
        """Switch to the weights and state from `prepare`, and set the model's parameters to them. Not collective."""
        super().adopt()
        self._weights.follow()
        self._weights.wait_updated()
        self._weights.note()
        self._set_options(self._prepared)

    def _set_options(self, told: Sequence[Mapping[str, Any]]) -> None:
        for group, options in zip(self.param_groups, told, strict=False):
            dict.update(group, carried_group_options(options, group))
