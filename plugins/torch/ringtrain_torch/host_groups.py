"""Parameter groups and hooks that a HostOptimizer shares with the torch optimizer that was passed to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any, Final

import torch

from ringtrain.errors import ConfigurationError

# Torch stores hooks under these names in each optimizer, by the number of their handle.
_HOOKS: Final = (
    "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks", "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks", "_optimizer_load_state_dict_pre_hooks", "_optimizer_load_state_dict_post_hooks",
)  # fmt: skip
# Effects of these methods on parameters that are trained elsewhere, and on an empty state.
_REFUSED: Final[Mapping[str, str]] = {
    "step": "change weights on this rank alone",
    "state_dict": "return a state without any step",
    "load_state_dict": "load a state that is never used",
}


class SharedTorchGroups:
    """Parameter groups and hooks of `inner`, shared with `owner`. If `inner` is None, only `owner` has groups.

    Schedulers and scripts may use either of them. Methods of `inner` that would act without the owner are refused.
    """

    def __init__(self, inner: torch.optim.Optimizer | None, owner: torch.optim.Optimizer) -> None:
        self._inner, self._owner = inner, owner
        self._before: dict[str, Any] = {}
        if inner is not None:
            owner.param_groups = inner.param_groups
            vars(owner).update({name: vars(inner)[name] for name in _HOOKS})
            self._before = {name: vars(inner)[name] for name in _REFUSED if name in vars(inner)}
            vars(inner).update({name: MethodType(_refusal(name, what), inner) for name, what in _REFUSED.items()})
        self.note()

    def note(self) -> None:
        """Record which parameters the groups contain, for `changed`."""
        self._groups = self._owner.param_groups
        self._members = self._now()

    def changed(self) -> bool:
        """Return whether a script has added parameters to the groups or removed some since `note()` was called."""
        owner, inner = self._owner, self._inner
        if inner is not None and inner.param_groups is not owner.param_groups:
            if owner.param_groups is self._groups:
                owner.param_groups = inner.param_groups
            else:
                inner.param_groups = owner.param_groups
            self._groups = owner.param_groups
        return self._now() != self._members

    def add(self, group: dict[str, Any]) -> None:
        """Add a parameter group, with torch's checks and defaults."""
        optimizer = self._owner if self._inner is None else self._inner
        torch.optim.Optimizer.add_param_group(optimizer, group)

    def stepped(self) -> None:
        """Mark `inner` as stepped, so that its schedulers do not warn that `step()` was not called."""
        if self._inner is not None:
            vars(self._inner)["_opt_called"] = True

    def release(self) -> None:
        """Allow `inner` to train alone again."""
        if self._inner is not None and _REFUSED.keys() <= vars(self._inner).keys():
            for name in _REFUSED:
                del vars(self._inner)[name]
            vars(self._inner).update(self._before)

    def _now(self) -> list[list[int]]:
        return [[id(param) for param in group["params"]] for group in self._owner.param_groups]


def _refusal(name: str, what: str) -> Callable[..., Any]:
    def refuse(self: torch.optim.Optimizer, *_: Any, **__: Any) -> Any:
        raise ConfigurationError(
            f"{type(self).__name__}.{name}() would {what}, because this optimizer was passed to a HostOptimizer; "
            f"call {name}() of the HostOptimizer"
        )

    vars(refuse)["_wrapped_by_lr_sched"] = True  # torch's schedulers check this attribute of step()
    return refuse
