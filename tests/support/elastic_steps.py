"""A training for slots of `started_slots` whose result shows how often each step counted."""

import os
from typing import Any

import numpy as np

import ringtrain as rt
from ringtrain import elastic
from support.elastic_agent import await_go_on
from support.ranks import tell


def add_up_steps(steps: int, told: tuple[int, ...] = ()) -> dict[str, Any]:
    """Add up a gradient of ones: the weights are ranks × steps only if each step counts once."""
    rt.init()
    state = elastic.State(weights=np.zeros(1000), step=0, sizes=[])

    @elastic.run
    def train(state: Any) -> None:
        state.sizes.append(rt.size())
        while state.step < steps:
            state.step += 1
            if state.step in told:
                tell(state.step)
                await_go_on()
            state.weights += rt.allreduce(np.ones(1000), rt.Average)
            state.commit()

    train(state)
    return {
        "pid": os.getpid(),
        "weights": sorted(set(state.weights.tolist())),
        "sizes": state.sizes,
        "committed": state.committed,
    }
