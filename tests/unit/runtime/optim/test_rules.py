"""Each rule against a textbook implementation in float64, written from the papers and PyTorch's documentation."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.memory_group import MemoryGroup, Table, run_threads

from ringtrain.errors import ConfigurationError
from ringtrain.optim import LAMB, SGD, Adam, AdamW, HostOptimizer, Rule

STEPS = 30
SHAPES = {"dense": (20, 30), "bias": (30,), "scale": (), "empty": (0, 4)}
Array = np.ndarray[Any, np.dtype[np.float64]]
Textbook = Callable[[Array, Array, dict[str, Array], int], Array]


def _sgd(momentum: float, nesterov: bool, decay: float) -> Textbook:
    def update(w: Array, g: Array, state: dict[str, Array], t: int) -> Array:
        g = g + decay * w
        if momentum:
            state["v"] = g if t == 1 else momentum * state["v"] + g
            g = g + momentum * state["v"] if nesterov else state["v"]
        return w - 0.1 * g

    return update


def _moments(g: Array, state: dict[str, Array], t: int) -> tuple[Array, Array]:
    state["m"] = 0.9 * state.get("m", np.zeros_like(g)) + 0.1 * g
    state["v"] = 0.99 * state.get("v", np.zeros_like(g)) + 0.01 * g**2
    return state["m"] / (1 - 0.9**t), state["v"] / (1 - 0.99**t)


def _adam(w: Array, g: Array, state: dict[str, Array], t: int) -> Array:
    m, v = _moments(g + 0.05 * w, state, t)
    return w - 0.1 * m / (np.sqrt(v) + 1e-3)


def _adamw(w: Array, g: Array, state: dict[str, Array], t: int) -> Array:
    w = w - 0.1 * 0.05 * w
    m, v = _moments(g, state, t)
    return w - 0.1 * m / (np.sqrt(v) + 1e-3)


def _lamb(w: Array, g: Array, state: dict[str, Array], t: int) -> Array:
    m, v = _moments(g, state, t)
    r = m / (np.sqrt(v) + 1e-3) + 0.05 * w
    weight_norm, direction_norm = np.sqrt((w**2).sum()), np.sqrt((r**2).sum())
    trust = weight_norm / direction_norm if weight_norm > 0 and direction_norm > 0 else 1.0
    return w - 0.1 * trust * r


RULES: dict[str, tuple[Rule, Textbook]] = {
    "sgd": (SGD(0.1), _sgd(0.0, False, 0.0)),
    "sgd-decay": (SGD(0.1, weight_decay=0.05), _sgd(0.0, False, 0.05)),
    "sgd-momentum": (SGD(0.1, momentum=0.9, weight_decay=0.05), _sgd(0.9, False, 0.05)),
    "sgd-nesterov": (SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.05), _sgd(0.9, True, 0.05)),
    "adam": (Adam(0.1, beta2=0.99, epsilon=1e-3, weight_decay=0.05), _adam),
    "adamw": (AdamW(0.1, beta2=0.99, epsilon=1e-3, weight_decay=0.05), _adamw),
    "lamb": (LAMB(0.1, beta2=0.99, epsilon=1e-3, weight_decay=0.05), _lamb),
}


def _start(name: str) -> Array:
    return np.random.default_rng([1, len(name)]).normal(size=SHAPES[name])


def _gradient(name: str, step: int) -> Array:
    return np.random.default_rng([2, len(name), step]).normal(size=SHAPES[name])


def _trained(group: MemoryGroup, rule: Rule, dtype: str) -> dict[str, Array]:
    opt = HostOptimizer({name: _start(name).astype(dtype) for name in SHAPES}, rule, group=group)
    for step in range(STEPS):
        for name in SHAPES:
            opt.submit(name, _gradient(name, step).astype(dtype))
        assert opt.step()
    return {name: weights.astype(np.float64) for name, weights in opt.weights.items()}


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 2e-5)])
@pytest.mark.parametrize("name", RULES)
def test_a_rule_follows_its_textbook(name: str, dtype: str, tolerance: float) -> None:
    """After 30 steps every weight is the textbook's, to the rounding of its type."""
    rule, textbook = RULES[name]
    (weights,) = run_threads(_trained, 1, rule, dtype)
    for param in SHAPES:
        expected, state = _start(param), {}
        for step in range(STEPS):
            expected = textbook(expected, _gradient(param, step), state, step + 1)
        np.testing.assert_allclose(weights[param], expected, rtol=tolerance, atol=tolerance)


def test_a_layer_of_zeros_moves_under_lamb() -> None:
    """The trust ratio of a layer whose norm is 0 is 1."""
    assert LAMB().trust_ratio(0.0, 2.0) == 1.0
    assert LAMB().trust_ratio(3.0, 0.0) == 1.0
    assert LAMB().trust_ratio(3.0, 2.0) == 1.5


@pytest.mark.parametrize("rule", [SGD, Adam, AdamW, LAMB])
def test_a_rule_accepts_the_smallest_numbers(rule: Callable[..., Rule]) -> None:
    """A rate of 0 is that of a warm-up's first step, or of a group that does not learn."""
    least = {"momentum": 0.0} if rule is SGD else {"beta1": 0.0, "beta2": 0.0}
    opt = HostOptimizer({"w": np.ones(3)}, rule(0.0, weight_decay=0.0, **least), group=MemoryGroup(Table(1), 0))
    opt.submit("w", np.ones(3))
    opt.step()
    assert opt.weights["w"].tolist() == [1.0] * 3


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SGD(-1.0), "SGD: lr is -1.0; expected a finite number >= 0"),
        (lambda: SGD(float("inf")), "SGD: lr is inf; expected a finite number >= 0"),
        (lambda: SGD(0.1, momentum=1.0), "SGD: momentum is 1.0; expected a finite number in [0, 1)"),
        (lambda: SGD(0.1, nesterov=True), "SGD: nesterov=True needs a momentum above 0, such as momentum=0.9"),
        (lambda: Adam(beta2=1.0), "Adam: beta2 is 1.0; expected a finite number in [0, 1)"),
        (lambda: AdamW(epsilon=0.0), "AdamW: epsilon is 0.0; expected a finite number > 0"),
        (lambda: LAMB(weight_decay=-0.1), "LAMB: weight_decay is -0.1; expected a finite number >= 0"),
    ],
)
def test_a_rule_refuses_what_makes_no_sense(build: Callable[[], Rule], message: str) -> None:
    """The error names the rule, the setting, its value and what was expected."""
    with pytest.raises(ConfigurationError) as error:
        build()
    assert str(error.value) == message
