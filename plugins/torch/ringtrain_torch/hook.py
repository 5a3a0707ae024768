"""Hooks that stay behind when what they are on is copied."""

from collections.abc import Callable
from typing import Any

import torch


class TorchGradientHook:
    """A hook that a copy of what it is on does not have: neither one that is pickled nor a deep copy."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    @torch._disable_dynamo  # in a compiled step, too, it is called as it is
    def __call__(self, *args: Any) -> Any:
        return self._call(*args)

    def __reduce__(self) -> Any:
        return _no_hook, ()

    def __deepcopy__(self, memo: Any) -> Callable[..., None]:
        return _nothing_to_hook


def _nothing_to_hook(*args: Any) -> None:
    """Stands where a hook was."""


def _no_hook() -> Callable[..., None]:
    return _nothing_to_hook
