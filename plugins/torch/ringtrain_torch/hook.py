"""Hooks that are not copied when their object is copied or pickled."""

import time
from collections.abc import Callable
from typing import Any

import torch

from ringtrain import timeline


class TorchGradientHook:
    """Hook that is lost when its object is pickled or deep-copied."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    @torch._disable_dynamo  # called unchanged, even in a compiled step
    def __call__(self, *args: Any) -> Any:
        return self._call(*args)

    def __reduce__(self) -> Any:
        return _no_hook, ()

    def __deepcopy__(self, memo: Any) -> Callable[..., None]:
        return _nothing_to_hook


def _nothing_to_hook(*args: Any) -> None:
    """Replace a hook in a copy."""


def _no_hook() -> Callable[..., None]:
    return _nothing_to_hook


def record_forward(model: Any) -> list[Any]:
    """Install hooks that record the model's forward passes in the timeline; return the hooks."""
    began_ns: list[int] = []
    return [
        model.register_forward_pre_hook(TorchGradientHook(lambda *_: began_ns.append(time.perf_counter_ns()))),
        model.register_forward_hook(
            TorchGradientHook(lambda *_: timeline.record_since(began_ns.pop(), "forward", "forward"))
        ),
    ]
