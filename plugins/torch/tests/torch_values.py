"""Tensors of known values, their numpy counterparts, and what a check of ringtrain.torch asserts about them."""

import os

import numpy as np
import pytest
import torch

import ringtrain.torch as hvd
from ringtrain_torch.bridge import to_arrays

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
RANKS = range(SIZE)
if os.environ.get("RINGTRAIN_TEST_DEVICE", "cpu") != "cpu":
    torch.cuda.set_device(RANK % torch.cuda.device_count())  # ranks that share a GPU go through host memory
    torch.set_default_device(os.environ["RINGTRAIN_TEST_DEVICE"])

FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTEGERS = ["uint8", "int8", "int16", "int32", "int64"]
DIMS = [1, 2, 3]
FOLDS = {"Sum": np.sum, "Min": np.min, "Max": np.max, "Product": np.prod, "Average": np.mean}
ROUNDING = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-6}


def value(rank: int, dim: int, dtype: str, rows: int | None = None) -> torch.Tensor:
    """Small integers that differ by rank: sums and products of four of them are exact in every dtype."""
    shape = (rows if rows is not None else SIZE + 1,) + (3,) * (dim - 1)
    flat = (np.arange(int(np.prod(shape))) + rank) % 3 + 1
    return torch.tensor(flat.reshape(shape)).to(getattr(torch, dtype))


def numbers(tensor: torch.Tensor) -> np.ndarray:
    return np.asarray(to_arrays([tensor])()[0], np.float64)


def stacked(dim: int, dtype: str, rows: int | None = None) -> np.ndarray:
    return np.stack([numbers(value(rank, dim, dtype, rows)) for rank in RANKS])


def same(tensor: torch.Tensor, expected: np.ndarray, case: object, dtype: str = "float64") -> None:
    """Exact, but for the one rounding that an average or a factor needs."""
    rounding = ROUNDING.get(dtype, 1e-12)
    assert tuple(tensor.shape) == expected.shape, (case, tensor.shape, expected.shape)
    np.testing.assert_allclose(numbers(tensor), expected, rtol=rounding, err_msg=str(case))


def reduced(dim: int, dtype: str, op: str, rows: int | None = None) -> np.ndarray:
    folded = FOLDS[op](stacked(dim, dtype, rows), axis=0)
    return np.trunc(folded) if dtype in INTEGERS else folded


def cases(dtypes=(*FLOATS, *INTEGERS), ops=tuple(FOLDS)):
    return [(dtype, dim, op) for dtype in dtypes for dim in DIMS for op in ops]


def rows_of(rank: int, rows: int) -> slice:
    lengths = [rows // SIZE + (index < rows % SIZE) for index in RANKS]
    return slice(sum(lengths[:rank]), sum(lengths[: rank + 1]))


def error_of(call) -> str:
    with pytest.raises(hvd.HorovodInternalError) as caught:
        call()
    assert isinstance(caught.value, RuntimeError)
    return str(caught.value)


def assert_differs(error: str, *words: str) -> None:
    for word in words:
        assert word in error, error
