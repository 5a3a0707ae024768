"""Data-parallel training is training: N ranks end with the weights of one process on the pooled batch."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.memory_group import MemoryGroup, Table
from support.ranks import run_ranks

import ringtrain as rt
from ringtrain._core.process_groups.group import CollectiveGroup
from ringtrain._core.process_groups.process_sets import group_of
from ringtrain.data import Shard
from ringtrain.optim import LAMB, SGD, Adam, AdamW, Cosine, HostOptimizer, Rule

SAMPLES = 100
GLOBAL_BATCH = 24  # 100 = 4 x 24 + 4: the last batch gives one sample to each of four ranks
EPOCHS = 6

RULES: dict[str, Rule] = {
    "sgd": SGD(0.1),
    "momentum": SGD(0.05, momentum=0.9, weight_decay=1e-3),
    "nesterov": SGD(0.05, momentum=0.9, nesterov=True),
    "adam": Adam(0.01),
    "adamw": AdamW(0.01),
    "lamb": LAMB(0.02),
}

Array = NDArray[Any]


@dataclass(frozen=True)
class Run:
    """Settings of a training: the rule, and everything that the results must not depend on."""

    rule: str
    dtype: str = "float32"
    sharded: bool = True
    bucket_bytes: int = 2000
    clip_norm: float | None = None


def _data() -> tuple[Array, Array]:
    random = np.random.default_rng(0)
    inputs = random.normal(size=(SAMPLES, 20))
    return inputs, np.tanh(inputs @ random.normal(size=(20, 3)))


def _gradients(weights: Any, inputs: Array, targets: Array) -> Iterator[tuple[str, Array]]:
    """Backward pass of two layers with tanh between them, for the mean squared error."""
    hidden = np.tanh(inputs @ weights["kernel0"] + weights["bias0"])
    error = (hidden @ weights["kernel1"] + weights["bias1"] - targets) * inputs.dtype.type(2 / targets.size)
    below = (error @ weights["kernel1"].T) * (1 - hidden**2)
    yield "bias1", error.sum(axis=0)
    yield "kernel1", hidden.T @ error
    yield "kernel0", inputs.T @ below
    yield "bias0", below.sum(axis=0)


def _train(run: Run, group: CollectiveGroup) -> dict[str, Array]:
    inputs, targets = (values.astype(run.dtype) for values in _data())
    random = np.random.default_rng(1 + group.rank)  # only rank 0's start counts
    shapes = {"kernel0": (20, 40), "bias0": (40,), "kernel1": (40, 3), "bias1": (3,)}
    params = {name: random.normal(0, 0.3, shape).astype(run.dtype) for name, shape in shapes.items()}
    opt = HostOptimizer(
        params,
        RULES[run.rule],
        sharded=run.sharded,
        bucket_bytes=run.bucket_bytes,
        clip_norm=run.clip_norm,
        schedule=Cosine(60),
        group=group,
    )
    part = Shard(SAMPLES, GLOBAL_BATCH // group.size, group.rank, group.size, 3, True, "weighted")
    for epoch in range(EPOCHS):
        for batch in part.epoch(epoch):
            chosen = inputs[batch.indices], targets[batch.indices]
            for name, gradient in _gradients(opt.weights, *chosen):
                opt.submit(name, gradient, batch.weight)
            assert opt.step()
    return {name: weights.copy() for name, weights in opt.weights.items()}


def _on_the_ring(runs: list[Run]) -> list[dict[str, Array]]:
    rt.init()
    trained = [_train(run, group_of()) for run in runs]
    rt.shutdown()
    return trained


def _bits(weights: dict[str, Array]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in weights.items()}


@pytest.mark.parametrize("size", [2, 3, 4])
def test_ranks_end_with_the_weights_of_one_process(size: int) -> None:
    """For every rule: equal bits on all ranks, and the pooled process' weights to 1e-6 of their size.

    In float64, where rounding is out of the way, to 1e-12.
    """
    runs = [Run(rule, dtype) for rule in RULES for dtype in ("float32", "float64")]
    by_rank = run_ranks(_on_the_ring, size, runs)
    for index, run in enumerate(runs):
        alone = _train(run, MemoryGroup(Table(1), 0))
        for rank in range(1, size):
            assert _bits(by_rank[rank][index]) == _bits(by_rank[0][index]), f"{run}, rank {rank}"
        tolerance = 1e-6 if run.dtype == "float32" else 1e-12
        for name, weights in by_rank[0][index].items():
            assert np.abs(weights - alone[name]).max() <= tolerance * np.abs(alone[name]).max(), f"{run}, {name}"


def test_how_it_is_done_changes_no_bit_on_the_ring() -> None:
    """Sharded or not, in small buckets or one: three real ranks end with the same bits, clipped or not."""
    runs = [
        Run(rule, sharded=sharded, bucket_bytes=bucket_bytes, clip_norm=clip_norm)
        for rule in ("nesterov", "adamw", "lamb")
        for clip_norm in (None, 0.05)
        for sharded in (True, False)
        for bucket_bytes in (1, 1 << 20)
    ]
    for trained in run_ranks(_on_the_ring, 3, runs):
        for first in range(0, len(trained), 4):
            bits = [_bits(weights) for weights in trained[first : first + 4]]
            assert bits[1:] == bits[:1] * 3
