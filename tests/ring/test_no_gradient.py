"""No gradient is not a gradient of zeros: what no rank has a gradient of stays as it is."""

import contextlib
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.pods import Pods
from support.ranks import run_ranks

import ringtrain as rt
from ringtrain._core.process_groups.group import Flat
from ringtrain.optim import LAMB, SGD, Adam, AdamW, HostOptimizer, Rule

# In buckets of 8 KiB: parameters that several ranks update, that one does, a scalar, and an empty one.
SHAPES = {"a": (701,), "b": (), "c": (3, 5), "d": (0,), "e": (4_099,), "f": (129,)}
DECAYED = AdamW(0.01, weight_decay=0.1)
RULES: dict[str, tuple[Rule, dict[str, Rule]]] = {
    "adamw": (DECAYED, {}),
    "momentum": (SGD(0.05, momentum=0.9, weight_decay=0.1), {}),
    "groups": (DECAYED, {"b": AdamW(0.02, weight_decay=0.0), "e": AdamW(0.003, beta1=0.8)}),
    "momentum-in-one-group": (SGD(0.1, weight_decay=0.1), {"e": SGD(0.1, momentum=0.5), "c": SGD(0.2)}),
    "adam": (Adam(0.01, weight_decay=0.1), {}),
    "lamb": (LAMB(0.01), {"a": LAMB(0.02)}),
}
STEPS = 6


def _gradient(name: str, step: int, rank: int, dtype: Any) -> Flat | None:
    """Return a rank's gradient: "a" in every step, "c" never (None), the others in some steps and on some ranks.

    Some begin with -0, and one is all -0: these count as gradients."""
    if name == "c" or (name != "a" and (step + len(name) + ord(name)) % 3 == 0):
        return None
    if name in "ef" and (step + rank) % 2:
        return None
    values = np.random.default_rng([step, rank, ord(name)]).standard_normal(SHAPES[name]).astype(dtype)
    if values.size and name == "f":
        values.reshape(-1)[0] = -0.0
    return np.full_like(values, -0.0) if (name, step) == ("e", 4) else values


def _start(name: str, dtype: Any) -> Flat:
    return np.random.default_rng(ord(name)).standard_normal(SHAPES[name]).astype(dtype)


def _trained(runs: list[tuple[str, Any, dict[str, Any]]]) -> list[dict[str, Flat]]:
    rt.init()
    ended = []
    for rules, dtype, options in runs:
        rule, others = RULES[rules]
        params = {name: _start(name, dtype) for name in SHAPES}
        opt = HostOptimizer(
            params, rule, groups=[(own, [name]) for name, own in others.items()], bucket_bytes=1 << 13, **options
        )
        for step in range(STEPS):
            for name in SHAPES:
                opt.submit(name, _gradient(name, step, rt.rank(), dtype))
            opt.step()
        opt.flush()  # of four micro-steps an update, the last one has two
        ended.append({name: weights.copy() for name, weights in opt.weights.items()})
        opt.close()
    rt.shutdown()
    return ended


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    rt.init()
    try:
        yield
    finally:
        rt.shutdown()


def _expected(rules: str, dtype: Any, size: int, options: dict[str, Any]) -> dict[str, Flat]:
    """Each parameter in an optimizer of its own, in one process, that steps where somebody has a gradient."""
    rule, others = RULES[rules]
    passes = options.get("accumulate", 1)
    ended = {}
    with _alone():
        for name in SHAPES:
            opt = HostOptimizer({name: _start(name, dtype)}, others.get(name, rule))
            for begin in range(0, STEPS, passes):
                steps = range(begin, min(begin + passes, STEPS))
                had = [_gradient(name, step, rank, dtype) for step in steps for rank in range(size)]
                if there := [one.astype(np.float64) for one in had if one is not None]:
                    opt.submit(name, (sum(there) / (len(steps) * size)).astype(dtype).reshape(SHAPES[name]))
                    opt.step()
            ended[name] = opt.weights[name].copy()
            opt.close()
    return ended


RUNS = [
    *((rules, np.dtype(np.float32), {}) for rules in RULES),
    ("groups", np.dtype(np.float64), {}),
    ("groups", np.dtype(ml_dtypes.bfloat16), {}),
    ("adamw", np.dtype(np.float16), {}),
    ("groups", np.dtype(np.float32), {"sharded": False}),
    ("groups", np.dtype(np.float32), {"elastic": True}),
    ("groups", np.dtype(np.float32), {"clip_norm": 1e9}),
    ("groups", np.dtype(np.float32), {"accumulate": 4}),
    ("momentum", np.dtype(np.float32), {"compression": "bf16"}),
    ("momentum", np.dtype(np.float32), {"compression": "int8"}),
]


@pytest.mark.parametrize("transport", ["auto", "grpc"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_each_parameter_moves_as_if_it_were_alone(size: int, transport: str) -> None:
    """In every way of updating, weights are those of optimizers that hold one parameter each, and are not called
    where nobody has a gradient of it."""
    _check(run_ranks(_trained, size, RUNS, env={"RINGTRAIN_TRANSPORT": transport}), size)


def test_it_is_agreed_between_pods() -> None:
    """Ranks that share memory with some ranks, and reach the others over a network, agree alike."""
    _check(run_ranks(_trained, 4, RUNS, env_of=Pods(2)), 4)


def _check(trained: list[list[dict[str, Flat]]], size: int) -> None:
    for index, (rules, dtype, options) in enumerate(RUNS):
        expected = _expected(rules, dtype, size, options)
        rounding = 3e-2 if dtype.itemsize < 4 or "compression" in options else 2e-5
        for name in SHAPES:
            for ended in trained:
                assert ended[index][name].tobytes() == trained[0][index][name].tobytes(), (rules, options, name)
            ours = trained[0][index][name].astype(np.float64)
            wanted, where = expected[name].astype(np.float64), f"{rules} {dtype} {options} {name}"
            np.testing.assert_allclose(ours, wanted, rtol=rounding, atol=rounding, err_msg=where)
        assert trained[0][index]["c"].tobytes() == _start("c", dtype).tobytes(), (rules, options)
