"""The host-side optimizer.

A gradient enters in `inbox`, is reduced and becomes an update in `pipeline`, through `rules` and `kernels`;
weights and state lie in `arenas` as `layout` decided; `host` is what a trainer holds. `cut` is all of that in one
world; `undo`, `mirror` and `reform` are for worlds that change. `diloco` averages what many steps have changed, by
host optimizers of its `fragments`.
"""

from ringtrain.optim.diloco import DiLoCo
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
    "DiLoCo",
    "HostOptimizer",
    "Nesterov",
    "Rule",
    "Schedule",
    "StepDecay",
    "Warmup",
]


def __dir__() -> list[str]:
    return __all__
