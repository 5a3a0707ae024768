"""Checks of allgather, broadcast and alltoall of ringtrain.torch against numpy, run on every rank of a world."""

import numpy as np
import torch
from torch_values import DIMS, FLOATS, INTEGERS, RANK, RANKS, SIZE, numbers, same, value

import ringtrain.torch as hvd

RUN_IN = [
    {"framework": "ringtrain.torch", "ranks": [1, 3], "each": {"RINGTRAIN_TEST_DEVICE": ["cpu", "cuda"]}},
    {
        "framework": "ringtrain.torch",
        "name": "over-torch",
        "ranks": [3],
        "env": {"RINGTRAIN_TRANSPORT": "torch"},
        "each": {"RINGTRAIN_TEST_DEVICE": ["cpu", "cuda"]},
    },
]


def test_allgather():
    for dtype in (*FLOATS, *INTEGERS, "bool"):
        for dim in DIMS:
            rows = [2 * rank + 1 for rank in RANKS]
            result = hvd.allgather(value(RANK, dim, dtype, rows[RANK]))
            parts = [numbers(value(rank, dim, dtype, rows[rank])) for rank in RANKS]
            same(result, np.concatenate(parts), (dtype, dim))


def test_allgather_of_nothing():
    result = hvd.allgather(torch.full((RANK, 2), float(RANK)))  # rank 0 has no row
    same(result, np.repeat(np.arange(SIZE), np.arange(SIZE))[:, None] * np.ones(2), "rank 0 sends no row")
    assert hvd.allgather(torch.empty(0, 4)).shape == (0, 4)
    assert hvd.allgather(torch.empty(3, 0)).shape == (3 * SIZE, 0)


def test_one_element_of_a_column():
    """The tensor is contiguous with any stride."""
    column = torch.full((4, 3), float(RANK))[:1, 1]
    same(hvd.allgather(column), np.arange(SIZE), "allgather")
    same(hvd.broadcast(column, SIZE - 1), np.array([SIZE - 1]), "broadcast")
    received, _ = hvd.alltoall(column, [1] + [0] * (SIZE - 1))
    same(received, np.arange(SIZE if RANK == 0 else 0), "alltoall")


def test_allgather_gradient():
    """The mean of all ranks' gradients: every row of the output weighs its place, and ranks weigh theirs
    differently."""
    for dtype in FLOATS:
        for dim in DIMS:
            x = value(RANK, dim, dtype, RANK + 1).requires_grad_()
            (y := hvd.allgather(x)).backward(places(y) * (RANK + 1))
            same(x.grad, allgather_gradient(x), (dtype, dim), dtype)


def places(y: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(y) * torch.arange(len(y)).reshape((-1,) + (1,) * (y.dim() - 1))


def allgather_gradient(x: torch.Tensor, rows_of=lambda rank: rank + 1) -> np.ndarray:
    start = sum(rows_of(rank) for rank in range(RANK))
    rows = np.arange(start, start + rows_of(RANK)).reshape((-1,) + (1,) * (x.dim() - 1))
    return sum(rank + 1 for rank in RANKS) / SIZE * rows * np.ones(tuple(x.shape))


def test_grouped_allgather():
    for dtype in (*FLOATS, *INTEGERS, "bool"):
        xs = [value(RANK, dim, dtype, RANK + dim) for dim in DIMS]
        later = hvd.grouped_allgather_async(xs)
        for ys in (hvd.grouped_allgather(xs), hvd.synchronize(later)):
            for dim, y in zip(DIMS, ys, strict=True):
                expected = np.concatenate([numbers(value(r, dim, dtype, r + dim)) for r in RANKS])
                same(y, expected, (dtype, dim))


def test_grouped_allgather_gradient():
    for dtype in FLOATS:
        xs = [value(RANK, dim, dtype, RANK + 1).requires_grad_() for dim in DIMS]
        ys = hvd.grouped_allgather(xs)
        torch.autograd.backward(ys, [places(y) * (RANK + 1) for y in ys])
        for x in xs:
            same(x.grad, allgather_gradient(x), dtype, dtype)


def test_broadcast():
    for root in RANKS:
        for dtype in (*FLOATS, *INTEGERS, "bool"):
            for dim in DIMS:
                expected = numbers(value(root, dim, dtype))
                same(hvd.broadcast(value(RANK, dim, dtype), root), expected, (root, dtype, dim))
                own = value(RANK, dim, dtype)
                assert hvd.broadcast_(own, root) is own
                same(own, expected, (root, dtype, dim, "in place"))


def test_broadcast_asynchronously():
    tensor = value(RANK, 2, "float32")
    later, in_place = hvd.broadcast_async(tensor, SIZE - 1), hvd.broadcast_async_(tensor.clone(), SIZE - 1)
    for handle in (later, in_place):
        same(hvd.synchronize(handle), numbers(value(SIZE - 1, 2, "float32")), "asynchronous")
    same(tensor, numbers(value(RANK, 2, "float32")), "left as it was")


def test_broadcast_gradient():
    for root in RANKS:
        flows = sum(r + 1.0 for r in RANKS) / SIZE if root == RANK else 0.0
        for dtype in FLOATS:
            for dim in DIMS:
                x = value(RANK, dim, dtype).requires_grad_()
                (y := hvd.broadcast(x, root)).backward(torch.full_like(y, RANK + 1.0))
                same(x.grad, np.full(tuple(x.shape), flows), (root, dtype, dim), dtype)


def test_alltoall_equal_parts():
    for dtype in (*FLOATS, *INTEGERS):
        for dim in DIMS:
            result = hvd.alltoall(value(RANK, dim, dtype, 2 * SIZE))
            sent = [numbers(value(rank, dim, dtype, 2 * SIZE))[2 * RANK : 2 * RANK + 2] for rank in RANKS]
            same(result, np.concatenate(sent), (dtype, dim))


def test_alltoall_splits():
    """Rank r sends (r + i) % 3 rows to rank i: some send nothing to some."""
    splits = [[(rank + to) % 3 for to in RANKS] for rank in RANKS]
    for dtype, dim in [("float32", 1), ("bfloat16", 2), ("int64", 3)]:
        own = value(RANK, dim, dtype, sum(splits[RANK]))
        for given in (splits[RANK], torch.tensor(splits[RANK])):
            result, received = hvd.alltoall(own, given)
            sent = []
            for rank in RANKS:
                cuts = np.cumsum([0, *splits[rank]])
                sent.append(numbers(value(rank, dim, dtype, cuts[-1]))[cuts[RANK] : cuts[RANK + 1]])
            same(result, np.concatenate(sent), (dtype, dim))
            assert received.tolist() == [splits[rank][RANK] for rank in RANKS]


def test_alltoall_rank_that_sends_nothing():
    rows = 0 if RANK == 0 else SIZE
    result, received = hvd.alltoall(torch.ones(rows, 2), [rows // SIZE] * SIZE)
    assert received.tolist() == [0] + [1] * (SIZE - 1)
    assert result.shape == (SIZE - 1, 2)
    nothing, none = hvd.alltoall(torch.empty(0, 2), [0] * SIZE)
    assert (nothing.shape, none.tolist()) == ((0, 2), [0] * SIZE)


def test_alltoall_of_an_empty_dimension():
    """The tensor has rows without elements."""
    rows, received = hvd.alltoall(torch.empty(sum(range(SIZE)), 0), list(RANKS))
    assert (rows.shape, received.tolist()) == ((RANK * SIZE, 0), [RANK] * SIZE)


def test_alltoall_gradient():
    splits = [RANK + 1] * SIZE
    for dtype in FLOATS:
        for dim in DIMS:
            x = value(RANK, dim, dtype, sum(splits)).requires_grad_()
            y, _received = hvd.alltoall(x, splits)
            y.backward(torch.full_like(y, RANK + 1.0))
            rows = np.repeat([to + 1.0 for to in RANKS], RANK + 1).reshape((-1,) + (1,) * (dim - 1))
            same(x.grad, rows * np.ones(tuple(x.shape)), (dtype, dim))


def test_alltoall_asynchronously():
    x = value(RANK, 2, "float32", SIZE)
    expected = np.concatenate([numbers(value(rank, 2, "float32", SIZE))[RANK : RANK + 1] for rank in RANKS])
    same(hvd.synchronize(hvd.alltoall_async(x)), expected, "equal parts")
    rows, received = hvd.synchronize(hvd.alltoall_async(x, [1] * SIZE))
    same(rows, expected, "splits")
    assert received.tolist() == [1] * SIZE
