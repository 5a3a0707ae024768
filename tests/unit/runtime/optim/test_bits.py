"""Settings that must not change a bit of the weights: sharding, bucket size, the order and threads of submission."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from support.memory_group import MemoryGroup, run_threads

from ringtrain.optim import LAMB, SGD, AdamW, HostOptimizer, Rule

# Parameters smaller and larger than a segment, one with a length that nothing divides, one 0-d, one empty.
SHAPES = {"a": (40, 64), "b": (64,), "c": (7, 131), "d": (), "e": (0, 3), "f": (300,)}
RULES = {"sgd": SGD(0.1, 0.9, True, 1e-3), "adamw": AdamW(), "lamb": LAMB()}
STEPS = 4


@dataclass(frozen=True)
class Variant:
    """One way of doing the same training."""

    sharded: bool = True
    bucket_bytes: int = 4096
    order_seed: int | None = None
    threads: bool = False
    update_during_backward: bool = False


VARIANTS = {
    "sharded": Variant(),
    "during-backward": Variant(update_during_backward=True),
    "during-backward-per-parameter": Variant(bucket_bytes=1, update_during_backward=True),
    "unsharded": Variant(sharded=False),
    "bucket-per-parameter": Variant(bucket_bytes=1),
    "one-bucket": Variant(bucket_bytes=1 << 30),
    "one-bucket-unsharded": Variant(bucket_bytes=1 << 30, sharded=False),
    "shuffled-submission": Variant(order_seed=5),
    "submitted-from-threads": Variant(bucket_bytes=1, order_seed=6, threads=True),
}


def _gradient(rank: int, step: int, name: str) -> Any:
    size = np.random.default_rng([rank, step, ord(name)]).normal(size=SHAPES[name])
    return (size * 3).astype(np.float32)


def _train(group: MemoryGroup, rule: Rule, variant: Variant, clip_norm: float | None) -> dict[str, bytes]:
    start = np.random.default_rng(group.rank)  # each rank starts elsewhere: rank 0's weights are broadcast
    params = {name: start.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    opt = HostOptimizer(
        params,
        rule,
        sharded=variant.sharded,
        bucket_bytes=variant.bucket_bytes,
        clip_norm=clip_norm,
        group=group,
        update_during_backward=variant.update_during_backward,
    )
    for step in range(STEPS):
        names = list(SHAPES)
        if variant.order_seed is not None:
            np.random.default_rng([variant.order_seed, group.rank, step]).shuffle(names)
        if variant.threads:
            with ThreadPoolExecutor(3) as pool:
                list(pool.map(lambda name: opt.submit(name, _gradient(group.rank, step, name)), names))  # noqa: B023
        else:
            for name in names:
                opt.submit(name, _gradient(group.rank, step, name))
        opt.step()
    return {name: weights.tobytes() for name, weights in opt.weights.items()}


@pytest.mark.parametrize("clip_norm", [None, 0.5], ids=["plain", "clipped"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_nothing_but_the_gradients_decides_the_bits(size: int, rule: str, clip_norm: float | None) -> None:
    """All ranks of all variants end with the same bits."""
    reference: dict[str, bytes] | None = None
    for name, variant in VARIANTS.items():
        for rank, weights in enumerate(run_threads(_train, size, RULES[rule], variant, clip_norm)):
            reference = reference or weights
            assert weights == reference, f"{name}, rank {rank}"


def test_ranks_issue_the_same_collectives_whatever_their_timing() -> None:
    """Submission order differs between ranks; the collectives and their order do not."""

    def calls(group: MemoryGroup) -> list[str]:
        _train(group, RULES["lamb"], VARIANTS["submitted-from-threads"], None)
        return group.calls

    first, *others = run_threads(calls, 3)
    assert others == [first, first]
    assert first.count("reduce_scatter") == STEPS * sum(1 for shape in SHAPES.values() if 0 not in shape)
