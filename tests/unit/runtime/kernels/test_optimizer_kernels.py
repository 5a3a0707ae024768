"""The compiled update rules against numpy's."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ringtrain._core.kernels.library import native_library
from ringtrain.optim.compiled import NativeOptimizerKernels
from ringtrain.optim.kernels import AdamTerms, NumpyOptimizerKernels, OptimizerKernels, OwnedBucketPart, SgdTerms

LENGTH = 64 * 1024 + 77  # more than one of numpy's blocks, and no multiple of a vector
SGD = SgdTerms(rate=0.1, scale=1 / 3, momentum=0.9, nesterov=False, decay=1e-4)
ADAM = AdamTerms(
    rate=1e-3, scale=1 / 3, beta1=0.9, beta2=0.999, epsilon=1e-8, coupled_decay=0.0, decoupled_decay=0.0,
    correction1=1 - 0.9**3, correction2=1 - 0.999**3,
)  # fmt: skip

library = native_library()
pytestmark = pytest.mark.skipif(library is None, reason="ringtrain was installed without a C compiler")


@pytest.fixture
def native() -> NativeOptimizerKernels:
    assert library is not None
    return NativeOptimizerKernels(library)


def some_part(dtype: Any) -> OwnedBucketPart:
    values = np.random.default_rng(7)
    weights, gradients, mean, square = (values.standard_normal(LENGTH).astype(dtype) for _ in range(4))
    gradients[:8] = [0, -0.0, np.inf, -np.inf, 1e-38, -1e-45, 3e38, 1]
    return OwnedBucketPart(weights, gradients, {"momentum": mean.copy(), "mean": mean, "square": np.abs(square)})


def after(kernels: OptimizerKernels, rule: str, terms: Any, dtype: Any, steps: int = 3) -> dict[str, Any]:
    part = some_part(dtype)
    result: dict[str, Any] = {}
    with np.errstate(all="ignore"):
        for _ in range(steps):
            part = replace(part, gradients=some_part(dtype).gradients)
            getattr(kernels, rule)(part, terms)
            result["direction"] = part.gradients.copy() if rule == "lamb_direction" else None
    return result | {"weights": part.weights, **part.state}


def assert_same_bits(one: dict[str, Any], other: dict[str, Any]) -> None:
    for name, values in one.items():
        if values is not None:
            assert np.array_equal(values, other[name], equal_nan=True), name


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "terms",
    [
        SGD,
        replace(SGD, momentum=0.0),
        replace(SGD, momentum=0.0, decay=0.0),
        replace(SGD, nesterov=True),
        replace(SGD, nesterov=True, decay=0.0),
    ],
    ids=["momentum", "plain-decay", "plain", "nesterov", "nesterov-without-decay"],
)
def test_sgd_has_the_bits_of_numpy(native: NativeOptimizerKernels, terms: SgdTerms, dtype: Any) -> None:
    """Infinities and subnormal numbers included."""
    assert_same_bits(after(native, "sgd", terms, dtype), after(NumpyOptimizerKernels(), "sgd", terms, dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rule", ["adam", "lamb_direction"])
@pytest.mark.parametrize(
    "terms",
    [ADAM, replace(ADAM, coupled_decay=0.01), replace(ADAM, decoupled_decay=0.01)],
    ids=["no-decay", "coupled-decay", "decoupled-decay"],
)
def test_adam_has_the_bits_of_numpy(native: NativeOptimizerKernels, rule: str, terms: AdamTerms, dtype: Any) -> None:
    """The update in place, and the direction that LAMB scales afterwards."""
    assert_same_bits(after(native, rule, terms, dtype), after(NumpyOptimizerKernels(), rule, terms, dtype))


@pytest.mark.parametrize("length", [0, 1, 7, 64, 1000])
def test_descend_has_the_bits_of_numpy(native: NativeOptimizerKernels, length: int) -> None:
    values = np.random.default_rng(1)
    weights, direction = (values.standard_normal(length).astype(np.float32) for _ in range(2))
    expected = weights.copy()
    NumpyOptimizerKernels().descend(expected, direction.copy(), 0.3)
    native.descend(weights, direction, 0.3)
    assert np.array_equal(weights, expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_square_sums_have_the_bits_of_numpy(native: NativeOptimizerKernels, dtype: Any) -> None:
    """Of segments of every length, infinities and subnormal numbers included."""
    lengths = np.tile(np.arange(1, 129), 9)  # more than one of numpy's blocks
    edges = np.concatenate([[0], np.cumsum(lengths)])
    values = np.random.default_rng(3).standard_normal(edges[-1]).astype(dtype)
    values[:8] = [0, -0.0, np.inf, -np.inf, 1e-38, -1e-45, 3e38, 1]
    expected = NumpyOptimizerKernels().square_sums(values, edges)
    assert native.square_sums(values, edges).tobytes() == expected.tobytes()
    assert np.isclose(expected[-1], np.square(values[-128:], dtype=np.float64).sum())
