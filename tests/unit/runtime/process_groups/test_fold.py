"""The fold has the same bits compiled, in numpy, and written down directly."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from ring.reference import DTYPES, OPS, dtype_of, folded, made

import ringtrain as rt
from ringtrain._core.kernels.library import native_library
from ringtrain._core.reduction.fold import ReductionFold
from ringtrain._core.wire.dtypes import INTEGERS

SPECIAL = [0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), float("nan"), 1e-45, 65504.0, 3e38, -3e38]

NATIVE = pytest.param(
    True,
    id="compiled",
    marks=pytest.mark.skipif(native_library() is None, reason="installed without a C compiler"),
)


def assert_same(got: NDArray[Any], expected: NDArray[Any]) -> None:
    """The same bits; of a NaN only that it is one, because the sign and payload of a NaN are the processor's."""
    bits = f"u{got.dtype.itemsize}"
    nan = np.isnan(expected.astype(np.float64))
    assert (np.isnan(got.astype(np.float64)) == nan).all()
    assert (got.view(bits)[~nan] == expected.view(bits)[~nan]).all()


@pytest.mark.parametrize("native", [NATIVE, pytest.param(False, id="numpy")])
@pytest.mark.parametrize(
    ("dtype", "op"),
    [(d, op) for d in DTYPES for op in OPS if op is not rt.Average or d not in INTEGERS],
    ids=lambda value: getattr(value, "value", value),
)
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
def test_the_fold_is_the_left_fold(dtype: str, op: rt.ReduceOp, native: bool) -> None:
    """For every dtype, op and number of ranks, also into the memory of any contribution."""
    for size in (1, 2, 3, 5):
        for length in (0, 1, 7, 10_001):
            parts = [made((length,), dtype, rank) for rank in range(size)]
            expected = folded(parts, op)
            for own in range(size):
                given = [part.copy() for part in parts]
                ReductionFold(op, parts[0].dtype, size, own, native).fold(iter(given), given[own])
                assert given[own].tobytes() == expected.tobytes()


@pytest.mark.parametrize("native", [NATIVE, pytest.param(False, id="numpy")])
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.value)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
def test_special_values_fold_alike(dtype: str, op: rt.ReduceOp, native: bool) -> None:
    """Signed zeros, infinities, NaN, the smallest and the largest numbers."""
    left, right = (grid.reshape(-1).astype(dtype_of(dtype)) for grid in np.meshgrid(SPECIAL, SPECIAL))
    parts = [left, right, right[::-1].copy()]
    out = np.empty_like(left)
    ReductionFold(op, left.dtype, 3, 0, native).fold(iter(parts), out)
    assert_same(out, folded(parts, op))


@pytest.mark.slow
@pytest.mark.parametrize("native", [NATIVE, pytest.param(False, id="numpy")])
def test_a_processor_that_flushes_subnormal_numbers_keeps_small_halves(native: bool) -> None:
    """Numbers that are subnormal in float16 are normal in float32, in which they are folded."""
    torch = pytest.importorskip("torch")
    part = np.array([6e-8, 3e-5, -5e-5, 1e-3], np.float16)
    out = np.empty_like(part)
    try:
        torch.set_flush_denormal(True)
        ReductionFold(rt.Sum, part.dtype, 2, 0, native).fold(iter([part, part]), out)
    finally:
        torch.set_flush_denormal(False)
    assert_same(out, part * 2)
