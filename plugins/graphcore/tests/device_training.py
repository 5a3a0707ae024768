"""Training on a simulated device, and the same in one process."""

import numpy as np
from support.simulated_device import Program, SimulatedSession

import ringtrain as rt
from ringtrain import device

device.init()
RANK, SIZE = rt.rank(), rt.size()
PROGRAM = Program(widths=(6, 16, 8, 2), learning_rate=0.1)
STEPS = 50


def batch(rank: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng([rank, step])
    return generator.normal(size=(4, 6)).astype(np.float32), generator.normal(size=(4, 2)).astype(np.float32)


def pooled(step: int) -> tuple[np.ndarray, np.ndarray]:
    return tuple(np.concatenate(parts) for parts in zip(*(batch(r, step) for r in range(SIZE)), strict=True))


def weights(session: SimulatedSession) -> np.ndarray:
    return np.concatenate([session.read_weight(name).reshape(-1) for name in session.parameters])


def alone(steps: int = STEPS) -> SimulatedSession:
    """One device without a host, on the pooled batch, with its own gradient descent."""
    session = SimulatedSession(PROGRAM)
    for step in range(steps):
        session.run(*pooled(step))
    return session


def same_everywhere(session: SimulatedSession) -> None:
    for other in rt.allgather(weights(session)[None]):
        np.testing.assert_array_equal(other, weights(session))
