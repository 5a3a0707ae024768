"""Optimizer that updates weights in host memory.

A gradient enters in `inbox`, is reduced and becomes an update in `pipeline`, by `rules` and `kernels`. Weights and
state are in `arenas`, at the places that `layout` computes; `host` is the API for a trainer. `cut` contains the parts
that depend on the world; `undo`, `mirror` and `reform` are for worlds that change. Plugins add optimizers
(`__getattr__`).
"""

import importlib
import importlib.util
from typing import Any

from ringtrain.optim.host import HostOptimizer
from ringtrain.optim.rules import LAMB, SGD, Adam, AdamW, Nesterov, Rule
from ringtrain.optim.schedules import Constant, Cosine, Schedule, StepDecay, Warmup

__all__ = [
    "LAMB",
    "SGD",
    "Adam",
    "AdamW",
    "Constant",
    "Cosine",
    "HostOptimizer",
    "Nesterov",
    "Rule",
    "Schedule",
    "StepDecay",
    "Warmup",
]


def __getattr__(name: str) -> Any:
    """Import and return an optimizer class of a plugin, which provides a module of its own.

    Raises ModuleNotFoundError that says what to install if the plugin is not installed.
    """
    module = f"ringtrain.{name.lower()}"
    if name.startswith("_") or importlib.util.find_spec(module) is None:
        raise AttributeError(f"module 'ringtrain.optim' has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return __all__
