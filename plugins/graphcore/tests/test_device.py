"""Checks of training on a simulated device, run on every rank of a world."""

import numpy as np
import pytest
from device_training import PROGRAM, RANK, SIZE, STEPS, alone, batch, same_everywhere, weights
from support.simulated_device import Program, SimulatedSession, Speeds

from ringtrain import device
from ringtrain.optim import SGD, Adam

RUN_IN = {"framework": "ringtrain.device", "ranks": [1, 3]}


def test_host_optimizer_trains_like_one_device():
    session = SimulatedSession(Program(PROGRAM.widths, seed=RANK))
    optimizer = device.DistributedOptimizer(SGD(lr=0.1), session, device.Options(bucket_bytes=256))
    for step in range(STEPS):
        session.run(*batch(RANK, step))
    session.settle()
    np.testing.assert_allclose(weights(session), weights(alone()), rtol=1e-5, atol=1e-5)
    same_everywhere(session)
    assert optimizer.updates == STEPS


def test_host_allreduce_trains_like_one_device():
    session = SimulatedSession(Program(PROGRAM.widths, seed=RANK))
    device.broadcast_weights(session, root_rank=0)
    device.insert_host_allreduce(session)
    for step in range(STEPS):
        session.run(*batch(RANK, step))
    session.settle()
    np.testing.assert_allclose(weights(session), weights(alone()), rtol=1e-5, atol=1e-5)
    same_everywhere(session)


def test_weights_are_broadcast():
    session = SimulatedSession(Program(PROGRAM.widths, seed=RANK))
    device.broadcast_weights(session, root_rank=SIZE - 1)
    expected = SimulatedSession(Program(PROGRAM.widths, seed=SIZE - 1))
    np.testing.assert_array_equal(weights(session), weights(expected))


def test_the_device_holds_no_optimizer_state():
    """Memory for weights, activations and one gradient is sufficient for every rule."""
    plain = SimulatedSession(PROGRAM)
    plain.run(*batch(RANK, 0))
    session = SimulatedSession(PROGRAM, memory_bytes=plain.memory.peak_bytes)
    optimizer = device.DistributedOptimizer(Adam(lr=1e-2), session)
    for step in range(3):
        session.run(*batch(RANK, step))
    assert set(session.memory.names()) == set(session.parameters)
    if SIZE == 1:
        assert optimizer.state_bytes == 2 * weights(session).nbytes


def test_gradients_leave_while_the_backward_pass_goes_on():
    slow_copies = Speeds(flops_per_s=1e6, out_bytes_per_s=1e6, in_bytes_per_s=1e6)
    session = SimulatedSession(PROGRAM, speeds=slow_copies)
    device.DistributedOptimizer(SGD(lr=0.1), session)
    session.run(*batch(RANK, 0))
    trace = {(span.engine, span.what): span for span in session.engines.trace}
    first_out, last_compute = trace["out", "layer2.bias"], trace["compute", "backward layer0"]
    assert first_out.start_s < last_compute.start_s
    assert [span.what for span in session.engines.trace if span.engine == "in"] == []
    session.run(*batch(RANK, 1))
    coming_in = [span.what for span in session.engines.trace if span.engine == "in"]
    assert coming_in[:2] == ["layer0.weight", "layer0.bias"]
    assert session.engines.now_s > last_compute.end_s


def test_state_continues():
    def train(session, steps):
        for step in steps:
            session.run(*batch(RANK, step))

    whole = SimulatedSession(PROGRAM)
    device.DistributedOptimizer(Adam(lr=1e-2), whole)
    train(whole, range(6))
    whole.settle()
    first = SimulatedSession(PROGRAM)
    optimizer = device.DistributedOptimizer(Adam(lr=1e-2), first)
    train(first, range(3))
    second = SimulatedSession(Program(PROGRAM.widths, seed=9))
    resumed = device.DistributedOptimizer(Adam(lr=1e-2), second)
    resumed.load_state_dict(optimizer.state_dict())
    train(second, range(3, 6))
    second.settle()
    np.testing.assert_array_equal(weights(second), weights(whole))
    optimizer.close()


def test_errors_of_a_device():
    with pytest.raises(ValueError, match="does not fit: the device has 100 bytes"):
        SimulatedSession(PROGRAM, memory_bytes=100)
    session = SimulatedSession(PROGRAM)
    with pytest.raises(ValueError, match=r"expected \(6, 16\)"):
        session.write_weight("layer0.weight", np.zeros(3, np.float32))
