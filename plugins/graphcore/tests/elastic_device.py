"""Programs of the ranks in tests/frameworks/test_device_elastic.py, which processes find by path."""

from typing import Any

import numpy as np
from support.elastic_agent import pause
from support.simulated_device import Program, SimulatedSession

import ringtrain as rt
from ringtrain import device, elastic
from ringtrain.optim import Adam

SAMPLES = 48


def trains(told: tuple[int, ...]) -> tuple[list[Any], list[float]]:
    """Train a simulated device for two epochs, report the steps in `told`, and wait there; return the used samples and
    the weights on the device."""
    rt.init()
    generator = np.random.default_rng(1)
    x, y = (generator.normal(size=(SAMPLES, width)).astype(np.float32) for width in (6, 2))
    session = SimulatedSession(Program((6, 16, 2), seed=rt.rank()))
    options = device.Options(bucket_bytes=256, elastic=True)
    optimizer = device.DistributedOptimizer(Adam(lr=0.01), session, options)
    shard = elastic.shard(SAMPLES, elastic.FixedGlobal(6))
    state = elastic.State(optimizer=optimizer, shard=shard, step=0, ledger=[])

    @elastic.run
    def train(state: Any) -> None:
        for epoch in state.shard.epochs(2):
            for batch in state.shard:
                state.step += 1
                pause(state.step, told)
                session.run(x[batch.indices], y[batch.indices])
                for used in rt.allgather_object(batch.indices.tolist()):
                    state.ledger += [(epoch, index) for index in used]
                state.commit()

    train(state)
    session.settle()
    weights = np.concatenate([session.read_weight(name).reshape(-1) for name in session.parameters])
    return sorted(state.ledger), weights.tolist()
