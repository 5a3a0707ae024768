"""A training for slots of `started_slots` whose result shows how often each step counted."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np

import ringtrain as rt
from ringtrain import elastic
from support.elastic_agent import pause


def call_first(hvd: Any, ones: Any, collective: str, begin: Callable[[], Any]) -> list[int]:
    """Run a collective of a framework at the top of the script, as scripts do that are not elastic; then train."""
    if collective == "allreduce":
        hvd.allreduce(ones(2))
    else:
        hvd.broadcast_parameters({"weight": ones(2)}, root_rank=0)
    state = begin()

    @elastic.run
    def train(state: Any) -> None:
        while state.step < 4:
            if state.step == 2:
                pause(state.step)
            state.sizes.append(int(hvd.allreduce(ones(1), op=hvd.Sum)[0]))
            state.step += 1
            state.commit()

    train(state)
    return list(state.sizes)


def add_up_steps(steps: int, told: tuple[int, ...] = ()) -> dict[str, Any]:
    """Add up a gradient of ones: the weights are ranks × steps only if each step counts once."""
    rt.init()
    state = elastic.State(weights=np.zeros(1000), step=0, sizes=[])

    @elastic.run
    def train(state: Any) -> None:
        state.sizes.append(rt.size())
        while state.step < steps:
            state.step += 1
            pause(state.step, told)
            state.weights += rt.allreduce(np.ones(1000), rt.Average)
            state.commit()

    train(state)
    return {
        "pid": os.getpid(),
        "weights": sorted(set(state.weights.tolist())),
        "sizes": state.sizes,
        "committed": state.committed,
    }
