"""Checks of `ringtrain.popart` on a stand-in of PopART, run on every rank of a world."""

import numpy as np
import popart_standin
import pytest
from device_training import PROGRAM, RANK, SIZE, STEPS, alone, batch, same_everywhere, weights
from support.simulated_device import Program, SimulatedSession

import ringtrain.popart as hvd

RUN_IN = {"framework": "ringtrain.popart", "ranks": [1, 2]}

popart = popart_standin.install()


def made(device: SimulatedSession):
    options = popart.SessionOptions()
    options.hostAllReduce = True
    return popart.TrainingSession(device, options), options


def test_a_script_of_the_extension_trains_like_one_device():
    """The lines that its page has, in their order."""
    device = SimulatedSession(Program(PROGRAM.widths, seed=RANK))
    session, options = made(device)
    optimizer = hvd.DistributedOptimizer("PopART's own", session, options)
    optimizer.insert_host_allreduce()
    hvd.broadcast_weights(session, root_rank=0)
    assert session.copies == 2  # all weights at once, there and back
    for step in range(STEPS):
        device.run(*batch(RANK, step))
    device.settle()
    np.testing.assert_allclose(weights(device), weights(alone()), rtol=1e-5, atol=1e-5)
    same_everywhere(device)


def test_a_device_session_takes_the_place_of_popart():
    device = SimulatedSession(Program(PROGRAM.widths, seed=RANK))
    hvd.broadcast_weights(device, root_rank=SIZE - 1)
    np.testing.assert_array_equal(weights(device), weights(SimulatedSession(Program(PROGRAM.widths, seed=SIZE - 1))))
    hvd.DistributedOptimizer(None, device).insert_host_allreduce()
    device.run(*batch(RANK, 0))
    device.settle()
    same_everywhere(device)


def test_errors():
    session, options = made(SimulatedSession(PROGRAM))
    options.hostAllReduce = False
    with pytest.raises(ValueError, match=r"hostAllReduce = False: .* set options\.hostAllReduce = True before"):
        hvd.DistributedOptimizer(None, session, options)
    without = popart.TrainingSession(SimulatedSession(PROGRAM), popart.SessionOptions())
    with pytest.raises(ValueError, match="has the streams none; expected gr_"):
        hvd.broadcast_weights(without)
    with pytest.raises(ValueError, match=r"session is an? int.*; expected a popart\.TrainingSession"):
        hvd.DistributedOptimizer(None, 3, None)
