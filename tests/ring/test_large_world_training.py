"""HostOptimizer in worlds whose reductions are trees, as real processes, and under mutual TLS."""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from support.certificates import JobAuthority
from support.pods import Pods
from support.ranks import run_ranks, started_ranks

import ringtrain as rt
from ring.reference import Array
from ring.test_pod_tree import by_tree
from ringtrain._core.process_groups.rank_context import ProcessGroupContext
from ringtrain._core.world.config import WorkerConfig
from ringtrain.optim import AdamW, HostOptimizer

SHAPES = {"short": (77,), "bias": (), "long": (401, 1003)}
STEPS = 3
FLAT_RANKS = 21  # no mesh, and no power of two
Bits = dict[str, bytes]


def gradient(rank: int, step: int, name: str) -> Array:
    values = np.random.default_rng([rank, step, len(name)]).standard_normal(SHAPES[name])
    return np.asarray(values, np.float32)


def trained(context: ProcessGroupContext, gradient_of: dict[tuple[int, str], Array]) -> Bits:
    """The bits of the weights after some steps."""
    with context.entered():
        params = {name: np.full(shape, 0.5, np.float32) for name, shape in SHAPES.items()}
        opt = HostOptimizer(params, AdamW(0.01), bucket_bytes=1 << 20)
        for step in range(STEPS):
            for name in SHAPES:
                opt.submit(name, gradient_of[step, name])
            opt.step()
        return {name: opt.weights[name].tobytes() for name in SHAPES}


def train() -> Bits:
    """As one rank of the world that the environment describes."""
    context = ProcessGroupContext(WorkerConfig.from_env(os.environ), None, direct_ranks_most=16)
    rank = context.config.place.rank
    bits = trained(context, {(step, name): gradient(rank, step, name) for step in range(STEPS) for name in SHAPES})
    with context.entered():
        rt.barrier()
    context.close()
    return bits


def reference(size: int, ranks_a_pod: int) -> Bits:
    """One process, which adds all ranks' gradients up as the tree does."""
    means = {}
    for step in range(STEPS):
        for name, shape in SHAPES.items():
            parts = [gradient(rank, step, name).reshape(-1) for rank in range(size)]
            total = by_tree(parts, ranks_a_pod, rt.Sum).reshape(shape)
            means[step, name] = np.asarray(total * np.float32(1 / size))  # as the optimizer does it
    alone = ProcessGroupContext(WorkerConfig(addresses=("127.0.0.1:1",)), None)
    try:
        return trained(alone, means)
    finally:
        alone.close()


@pytest.fixture
def secrets(tmp_path: Path) -> Mapping[str, str]:
    """Return the variables with which ranks encrypt tensors."""
    secret = JobAuthority("uid-1").secret_dir(tmp_path / "rank", "worker")
    return {
        "RINGTRAIN_ENCRYPT": "tensors", "RINGTRAIN_SECRET_DIR": str(secret), "RINGTRAIN_JOB_UID": "uid-1",
        "RINGTRAIN_TOKEN_FILE": str(secret / "token"),
    }  # fmt: skip


def test_ranks_without_pods_train_as_one_process() -> None:
    """Weights of all ranks have the bits of the reference: buckets are reduced, updated and gathered in passes."""
    expected = reference(FLAT_RANKS, 1)
    for bits in run_ranks(train, FLAT_RANKS, env={"RINGTRAIN_TRANSPORT": "grpc"}):
        assert bits == expected


def test_more_than_twelve_pods_train_as_one_process(secrets: Mapping[str, str]) -> None:
    """13 pods of two ranks each, with encryption."""
    expected = reference(26, 2)
    with started_ranks(train, 26, env=secrets, env_of=Pods(13)) as ranks:
        for outcome in ranks.outcomes():
            assert outcome.ok, outcome
            assert outcome.value == expected
