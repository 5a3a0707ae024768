"""Checks of ringtrain.torch's collectives against direct numpy computations, run on every rank of a world."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

import ringtrain.torch as hvd
from ringtrain.torch.bridge import to_arrays, torch_dtype

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
RANKS = range(SIZE)

FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTEGERS = ["uint8", "int8", "int16", "int32", "int64"]
DIMS = [1, 2, 3]
FOLDS = {"Sum": np.sum, "Min": np.min, "Max": np.max, "Product": np.prod, "Average": np.mean}


def value(rank: int, dim: int, dtype: str, rows: int | None = None) -> torch.Tensor:
    """Small integers that differ by rank: sums and products of four of them are exact in every dtype."""
    shape = (rows if rows is not None else SIZE + 1,) + (3,) * (dim - 1)
    flat = (np.arange(int(np.prod(shape))) + rank) % 3 + 1
    return torch.tensor(flat.reshape(shape)).to(torch_dtype(dtype))


def numbers(tensor: torch.Tensor) -> np.ndarray:
    return np.asarray(to_arrays([tensor])()[0], np.float64)


def stacked(dim: int, dtype: str) -> np.ndarray:
    return np.stack([numbers(value(rank, dim, dtype)) for rank in RANKS])


def same(tensor: torch.Tensor, expected: np.ndarray, case: object, dtype: str = "float64") -> None:
    """Exact, but for the one rounding that an average or a factor needs."""
    rounding = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-6}.get(dtype, 1e-12)
    assert tuple(tensor.shape) == expected.shape, (case, tensor.shape, expected.shape)
    np.testing.assert_allclose(numbers(tensor), expected, rtol=rounding, err_msg=str(case))


def reduced(dim: int, dtype: str, op: str) -> np.ndarray:
    folded = FOLDS[op](stacked(dim, dtype), axis=0)
    return np.trunc(folded) if dtype in INTEGERS else folded


def cases(dtypes=(*FLOATS, *INTEGERS), ops=tuple(FOLDS)):
    return [(dtype, dim, op) for dtype in dtypes for dim in DIMS for op in ops]


def check_allreduce_forward():
    handles = {
        case: hvd.allreduce_async(value(RANK, case[1], case[0]), op=getattr(hvd, case[2])) for case in cases()
    }
    for case, handle in handles.items():
        result = hvd.synchronize(handle)
        assert hvd.poll(handle)
        assert result.dtype is torch_dtype(case[0])
        same(result, reduced(case[1], case[0], case[2]), case, case[0])


def check_allreduce_in_place():
    for case in cases(ops=["Sum", "Average"]):
        tensor = value(RANK, case[1], case[0])
        assert hvd.allreduce_(tensor, op=getattr(hvd, case[2])) is tensor
        same(tensor, reduced(case[1], case[0], case[2]), case, case[0])


def check_allreduce_of_tensors_that_are_not_contiguous():
    tensor = value(RANK, 2, "float32").t()
    same(hvd.allreduce(tensor, op=hvd.Sum), reduced(2, "float32", "Sum").T, "transposed")
    hvd.allreduce_(tensor, op=hvd.Sum)
    same(tensor, reduced(2, "float32", "Sum").T, "transposed, in place")


def check_allreduce_of_scalars_and_empty_tensors():
    assert hvd.allreduce(torch.tensor(float(RANK)), op=hvd.Sum).item() == sum(RANKS)
    assert hvd.allreduce(torch.empty(0, 3)).shape == (0, 3)


def check_allreduce_of_bools():
    tensor = torch.tensor([RANK == 0, True, False])
    assert hvd.allreduce(tensor, op=hvd.Max).tolist() == [True, True, False]
    assert hvd.allreduce(tensor, op=hvd.Min).tolist() == [SIZE == 1, True, False]


def check_allreduce_factors():
    for dtype in FLOATS:
        result = hvd.allreduce(value(RANK, 2, dtype), op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
        same(result, 1.5 * reduced(2, dtype, "Sum"), dtype, dtype)
    result = hvd.allreduce(value(RANK, 1, "int32"), op=hvd.Sum, postscale_factor=2.0)
    same(result, 2 * reduced(1, "int32", "Sum"), "int32")


def check_allreduce_average_argument():
    tensor = value(RANK, 1, "float32")
    same(hvd.allreduce(tensor, average=False), reduced(1, "float32", "Sum"), "average=False")
    same(hvd.allreduce(tensor, average=True), reduced(1, "float32", "Average"), "average=True", "float32")


def check_allreduce_gradient():
    """Ranks weigh their outputs differently, so that a gradient of the wrong rank shows."""
    for dtype, dim, op in cases(["float32", "float64"]):
        x = value(RANK, dim, dtype).requires_grad_()
        y = hvd.allreduce(x, op=getattr(hvd, op), prescale_factor=2.0)
        y.backward(torch.full_like(y, RANK + 1.0))
        same(x.grad, allreduce_gradient(dim, dtype, op), (dtype, dim, op), "float32")


def allreduce_gradient(dim: int, dtype: str, op: str) -> np.ndarray:
    inputs, total = stacked(dim, dtype), sum(rank + 1.0 for rank in RANKS)
    if op in ("Sum", "Average"):
        return np.full(inputs[0].shape, 2 * total / (SIZE if op == "Average" else 1))
    if op == "Product":
        return total * 2**SIZE * np.prod(np.delete(inputs, RANK, axis=0), axis=0)
    held = inputs == FOLDS[op](inputs, axis=0)
    return 2 * total * held[RANK] / held.sum(axis=0)


def check_allreduce_compressed():
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        result = hvd.allreduce(value(RANK, 2, "float32"), compression=compression, op=hvd.Sum)
        assert result.dtype is torch.float32
        same(result, reduced(2, "float32", "Sum"), compression)
        integers = hvd.allreduce(value(RANK, 2, "int64"), compression=compression, op=hvd.Sum)
        same(integers, reduced(2, "int64", "Sum"), compression)


def check_grouped_allreduce():
    for dtype in (*FLOATS, *INTEGERS):
        results = hvd.grouped_allreduce([value(RANK, dim, dtype) for dim in DIMS], op=hvd.Sum)
        for dim, result in zip(DIMS, results, strict=True):
            same(result, reduced(dim, dtype, "Sum"), (dtype, dim), dtype)
    mixed = [value(RANK, 1, "float32"), value(RANK, 2, "int64")]
    assert hvd.grouped_allreduce_(mixed, op=hvd.Max)[1] is mixed[1]
    same(mixed[0], reduced(1, "float32", "Max"), "mixed dtypes")
    same(mixed[1], reduced(2, "int64", "Max"), "mixed dtypes")


def check_grouped_allreduce_gradient():
    xs = [value(RANK, dim, "float32").requires_grad_() for dim in DIMS]
    ys = hvd.grouped_allreduce(xs, op=hvd.Average)
    sum((y * (RANK + 1)).sum() for y in ys).backward()
    for x in xs:
        same(x.grad, np.full(tuple(x.shape), sum(r + 1 for r in RANKS) / SIZE), "grouped", "float32")


def adasum_reference(arrays: list[np.ndarray]) -> np.ndarray:
    if len(arrays) == 1:
        return arrays[0]
    a, b = adasum_reference(arrays[: len(arrays) // 2]), adasum_reference(arrays[len(arrays) // 2 :])
    dot = (a * b).sum()
    return (1 - dot / (2 * (a * a).sum())) * a + (1 - dot / (2 * (b * b).sum())) * b


def check_adasum():
    if SIZE & (SIZE - 1):
        error = error_of(lambda: hvd.allreduce(value(RANK, 1, "float32"), op=hvd.Adasum))
        assert f"the process set has {SIZE}" in error
        return
    for dtype in ("float32", "float64", "float16"):
        result = hvd.allreduce(value(RANK, 2, dtype), op=hvd.Adasum)
        same(result, adasum_reference(list(stacked(2, dtype))), dtype, dtype)
    alike = hvd.allreduce(torch.tensor([3.0, 4.0]), op=hvd.Adasum)
    np.testing.assert_allclose(alike.numpy(), [3.0, 4.0], rtol=1e-6)
    basis = torch.eye(SIZE)[RANK]
    assert hvd.allreduce(basis, op=hvd.Adasum).tolist() == [1.0] * SIZE


def check_allgather():
    for dtype in (*FLOATS, *INTEGERS, "bool"):
        for dim in DIMS:
            rows = [2 * rank + 1 for rank in RANKS]
            result = hvd.allgather(value(RANK, dim, dtype, rows[RANK]))
            parts = [numbers(value(rank, dim, dtype, rows[rank])) for rank in RANKS]
            same(result, np.concatenate(parts), (dtype, dim))


def check_allgather_of_nothing():
    result = hvd.allgather(torch.full((RANK, 2), float(RANK)))  # rank 0 has no row
    same(result, np.repeat(np.arange(SIZE), np.arange(SIZE))[:, None] * np.ones(2), "rank 0 sends no row")
    assert hvd.allgather(torch.empty(0, 4)).shape == (0, 4)
    assert hvd.allgather(torch.empty(3, 0)).shape == (3 * SIZE, 0)


def check_allgather_gradient():
    for dim in DIMS:
        x = value(RANK, dim, "float32", RANK + 1).requires_grad_()
        y = hvd.allgather(x)
        weights = torch.arange(len(y), dtype=torch.float32).reshape((-1,) + (1,) * (dim - 1))
        (y * weights * (RANK + 1)).sum().backward()
        start = sum(rank + 1 for rank in range(RANK))
        rows = np.arange(start, start + RANK + 1).reshape((-1,) + (1,) * (dim - 1))
        same(x.grad, sum(r + 1 for r in RANKS) * rows * np.ones(tuple(x.shape)), dim)


def check_grouped_allgather():
    xs = [value(RANK, dim, "float32", RANK + dim).requires_grad_() for dim in DIMS]
    ys = hvd.grouped_allgather(xs)
    for dim, y in zip(DIMS, ys, strict=True):
        same(y, np.concatenate([numbers(value(r, dim, "float32", r + dim)) for r in RANKS]), dim)
    sum(y.sum() for y in ys).backward()
    for x in xs:
        same(x.grad, np.full(tuple(x.shape), float(SIZE)), "gradient")
    later = hvd.synchronize(hvd.grouped_allgather_async([x.detach() for x in xs]))
    assert [tuple(t.shape) for t in later] == [tuple(y.shape) for y in ys]


def check_broadcast():
    for root in RANKS:
        for dtype in (*FLOATS, *INTEGERS, "bool"):
            for dim in DIMS:
                expected = numbers(value(root, dim, dtype))
                same(hvd.broadcast(value(RANK, dim, dtype), root), expected, (root, dtype, dim))
                own = value(RANK, dim, dtype)
                assert hvd.broadcast_(own, root) is own
                same(own, expected, (root, dtype, dim, "in place"))


def check_broadcast_gradient():
    for root in RANKS:
        x = value(RANK, 2, "float32").requires_grad_()
        (hvd.broadcast(x, root) * (RANK + 1)).sum().backward()
        flows = sum(r + 1.0 for r in RANKS) if root == RANK else 0.0
        same(x.grad, np.full(tuple(x.shape), flows), root)


def check_alltoall_equal_parts():
    for dtype in (*FLOATS, *INTEGERS):
        for dim in DIMS:
            result = hvd.alltoall(value(RANK, dim, dtype, 2 * SIZE))
            sent = [numbers(value(rank, dim, dtype, 2 * SIZE))[2 * RANK : 2 * RANK + 2] for rank in RANKS]
            same(result, np.concatenate(sent), (dtype, dim))


def check_alltoall_splits():
    """Rank r sends (r + i) % 3 rows to rank i: some send nothing to some."""
    splits = [[(rank + to) % 3 for to in RANKS] for rank in RANKS]
    own = value(RANK, 2, "float32", sum(splits[RANK]))
    for given in (splits[RANK], torch.tensor(splits[RANK])):
        result, received = hvd.alltoall(own, given)
        sent = []
        for rank in RANKS:
            cuts = np.cumsum([0, *splits[rank]])
            sent.append(numbers(value(rank, 2, "float32", cuts[-1]))[cuts[RANK] : cuts[RANK + 1]])
        same(result, np.concatenate(sent), "splits")
        assert received.tolist() == [splits[rank][RANK] for rank in RANKS]


def check_alltoall_rank_that_sends_nothing():
    rows = 0 if RANK == 0 else SIZE
    result, received = hvd.alltoall(torch.ones(rows, 2), [rows // SIZE] * SIZE)
    assert received.tolist() == [0] + [1] * (SIZE - 1)
    assert result.shape == (SIZE - 1, 2)
    nothing, none = hvd.alltoall(torch.empty(0, 2), [0] * SIZE)
    assert (nothing.shape, none.tolist()) == ((0, 2), [0] * SIZE)


def check_alltoall_gradient():
    splits = [RANK + 1] * SIZE
    x = torch.ones(sum(splits), 2, requires_grad=True)
    y, _received = hvd.alltoall(x, splits)
    (y * (RANK + 1)).sum().backward()
    expected = np.repeat([to + 1.0 for to in RANKS], RANK + 1)[:, None] * np.ones(2)
    same(x.grad, expected, "gradient")


def rows_of(rank: int, rows: int) -> slice:
    lengths = [rows // SIZE + (index < rows % SIZE) for index in RANKS]
    return slice(sum(lengths[:rank]), sum(lengths[: rank + 1]))


def check_reducescatter():
    for dtype, dim, op in cases(ops=["Sum", "Average"]):
        for rows in (2 * SIZE, SIZE + 1):
            result = hvd.reducescatter(value(RANK, dim, dtype, rows), op=getattr(hvd, op))
            everyone = np.stack([numbers(value(rank, dim, dtype, rows)) for rank in RANKS])
            folded = FOLDS[op](everyone, axis=0)
            folded = np.trunc(folded) if dtype in INTEGERS else folded
            same(result, folded[rows_of(RANK, rows)], (dtype, dim, op, rows), dtype)


def check_reducescatter_fewer_rows_than_ranks():
    result = hvd.reducescatter(torch.ones(1, 2), op=hvd.Sum)
    same(result, np.full((1 if RANK == 0 else 0, 2), float(SIZE)), "one row")


def check_reducescatter_factors_and_compression():
    tensor = value(RANK, 2, "float32", SIZE)
    result = hvd.reducescatter(
        tensor, op=hvd.Sum, compression=hvd.Compression.fp16, prescale_factor=2.0, postscale_factor=0.5
    )
    expected = sum(numbers(value(rank, 2, "float32", SIZE)) for rank in RANKS)
    same(result, expected[rows_of(RANK, SIZE)], "factors")


def check_reducescatter_gradient():
    for dim in DIMS:
        for op, factor in (("Sum", SIZE), ("Average", 1)):
            x = value(RANK, dim, "float32", 2 * SIZE).requires_grad_()
            y = hvd.reducescatter(x, op=getattr(hvd, op))
            y.backward(torch.full_like(y, RANK + 1.0))
            rows = np.repeat([rank + 1.0 for rank in RANKS], 2).reshape((-1,) + (1,) * (dim - 1))
            same(x.grad, factor * rows * np.ones(tuple(x.shape)), (dim, op))


def check_grouped_reducescatter():
    xs = [value(RANK, dim, "float32", SIZE + dim) for dim in DIMS]
    for results in (
        hvd.grouped_reducescatter(xs, op=hvd.Sum),
        hvd.synchronize(hvd.grouped_reducescatter_async(xs, op=hvd.Sum)),
    ):
        for dim, result in zip(DIMS, results, strict=True):
            expected = sum(numbers(value(rank, dim, "float32", SIZE + dim)) for rank in RANKS)
            same(result, expected[rows_of(RANK, SIZE + dim)], dim)


def check_sparse_allreduce():
    """Ranks have different entries, and one in common."""
    sparse = torch.sparse_coo_tensor([[0, RANK + 1]], [float(RANK), 1.0], (SIZE + 1,))
    for op, divisor in ((hvd.Sum, 1), (hvd.Average, SIZE)):
        expected = np.array([sum(RANKS), *[1.0] * SIZE]) / divisor
        same(hvd.sparse_allreduce_async(sparse, "s", op)().to_dense(), expected, op, "float32")
        same(hvd.synchronize(hvd.sparse_allreduce_async(sparse, "s", op)).to_dense(), expected, op, "float32")
    empty = torch.sparse_coo_tensor(torch.empty(1, 0), torch.empty(0), (3,))
    assert hvd.sparse_allreduce_async(empty, "e", hvd.Sum)().to_dense().tolist() == [0.0, 0.0, 0.0]


def check_names_in_different_orders():
    """Rank r submits twelve tensors in an order of its own; each result is that of its name."""
    order = np.random.default_rng(RANK).permutation(12)
    for _ in range(3):
        handles = {
            int(i): hvd.allreduce_async(torch.full((3,), float(i + RANK)), name=f"t{i}", op=hvd.Sum) for i in order
        }
        for i, handle in handles.items():
            same(hvd.synchronize(handle), np.full(3, i * SIZE + sum(RANKS), float), i)


def check_join_of_uneven_data():
    """Ranks that have joined count as zeros; all learn the last one."""
    for first in RANKS:
        steps = 1 if first == RANK else 3
        for step in range(steps):
            summed = hvd.allreduce(torch.ones(2), op=hvd.Sum, name="uneven")
            expected = SIZE if step == 0 else SIZE - 1
            same(summed, np.full(2, float(expected)), (first, step))
            averaged = hvd.allreduce(torch.ones(2), name="uneven average")
            same(averaged, np.full(2, expected / SIZE), (first, step), "float32")
        last = hvd.join()
        assert last != first or SIZE == 1
        assert set(hvd.allgather_object(last)) == {last}


def check_join_forbids_what_needs_every_rank():
    if SIZE == 1:
        return
    if RANK > 0:
        for call in (
            lambda: hvd.allgather(torch.ones(2)),
            lambda: hvd.broadcast(torch.ones(2), 1),
            lambda: hvd.reducescatter(torch.ones(SIZE)),
            lambda: hvd.allreduce(torch.ones(2), op=hvd.Max),
        ):
            assert "rank 0 has called join()" in error_of(call)
    hvd.join()


def check_barrier():
    hvd.barrier()


def error_of(call) -> str:
    with pytest.raises(hvd.HorovodInternalError) as caught:
        call()
    assert isinstance(caught.value, RuntimeError)
    return str(caught.value)


def check_error_shape():
    error = error_of(lambda: hvd.allreduce(torch.ones(3 if RANK else 2), name="w"))
    assert_differs(error, "shape", "(2,) on rank 0 and (3,) on rank 1")
    error = error_of(lambda: hvd.allgather(torch.ones(2, 3 if RANK else 2), name="w"))
    assert_differs(error, "shape after the first dimension", "on rank 0 and")


def assert_differs(error: str, *words: str) -> None:
    for word in words:
        assert word in error, error


def only_where_ranks_can_differ(check):
    return check if SIZE > 1 else lambda: None


def check_error_dtype():
    tensor = torch.ones(2, dtype=torch.float32 if RANK == 0 else torch.int64)
    for call in (hvd.allreduce, hvd.allgather, lambda t: hvd.broadcast(t, 0), hvd.alltoall, hvd.reducescatter):
        if call is not hvd.alltoall or SIZE == 2:
            assert_differs(error_of(lambda c=call: c(tensor)), "dtype", "float32 on rank 0 and int64 on rank 1")


def check_error_device():
    """The kinds of device that a rank says its tensor is on are compared; meta stands for any other than the
    CPU.
    """
    from ringtrain.named.request import Kind, Request
    from ringtrain.named.world import queue_of

    device = "cpu" if RANK == 0 else "cuda"
    request = Request(Kind.ALLREDUCE, "d", ("float32",), ((2,),), op="Sum", device=device)
    future = queue_of(hvd.global_process_set).submit(request, lambda: [np.ones(2, np.float32)])
    assert_differs(error_of(future.result), "device is cpu on rank 0 and cuda on rank 1")


def check_error_op():
    error = error_of(lambda: hvd.allreduce(torch.ones(2), name="o", op=hvd.Sum if RANK == 0 else hvd.Max))
    assert_differs(error, "op is Sum on rank 0 and Max on rank 1")


def check_error_number_of_tensors():
    tensors = [torch.ones(2)] * (1 + min(RANK, 1))
    assert_differs(error_of(lambda: hvd.grouped_allreduce(tensors, name="g")), "dtype is float32 on rank 0 and")


def check_error_root():
    error = error_of(lambda: hvd.broadcast(torch.ones(2), min(RANK, 1)))
    assert_differs(error, "root rank is 0 on rank 0 and 1 on rank 1")


def check_error_root_outside():
    assert_differs(error_of(lambda: hvd.broadcast(torch.ones(2), SIZE)), f"root rank is {SIZE}", "expected one of")


def check_error_factors():
    error = error_of(lambda: hvd.allreduce(torch.ones(2), prescale_factor=1.0 + min(RANK, 1)))
    assert_differs(error, "prescale factor is 1.0 on rank 0 and 2.0 on rank 1")
    error = error_of(lambda: hvd.allreduce(torch.ones(2), postscale_factor=1.0 + min(RANK, 1)))
    assert_differs(error, "postscale factor is 1.0 on rank 0 and 2.0 on rank 1")


def check_error_name_in_flight():
    """The second of two submissions under one name fails; the first is not harmed."""
    hold = hvd.allreduce_async(torch.ones(2), name="hold", op=hvd.Sum)
    first = hvd.allreduce_async(torch.ones(200_000), name="twice", op=hvd.Sum)
    try:
        hvd.allreduce_async(torch.ones(200_000), name="twice", op=hvd.Sum)
    except ValueError as error:
        assert_differs(str(error), f"rank {RANK}", "'allreduce.twice'", "still in flight")
    else:
        assert hvd.poll(first)  # it had ended already, so nothing was in flight
        hvd.barrier()
    assert hvd.synchronize(first)[0].item() == SIZE
    hvd.synchronize(hold)


def check_error_scalar():
    for call in (hvd.allgather, hvd.alltoall, hvd.reducescatter):
        assert_differs(error_of(lambda c=call: c(torch.tensor(1.0))), "rank 0", "is a scalar")


def check_error_splits():
    """Rank 0's splits are wrong; every rank says so."""
    wrong = {"entries": [1] * (SIZE + 1), "add up to": [3] * SIZE, "negative": [-1] * SIZE}
    for words, splits in wrong.items():
        own = splits if RANK == 0 else [1] * SIZE
        assert_differs(error_of(lambda s=own: hvd.alltoall(torch.ones(SIZE), s)), "rank 0", words)


def check_error_rows_that_do_not_divide():
    if SIZE > 1:
        assert_differs(error_of(lambda: hvd.alltoall(torch.ones(SIZE + 1))), "do not divide")


def check_error_op_that_is_none():
    for call in (
        lambda: hvd.allreduce(torch.ones(2), op="median"),
        lambda: hvd.allreduce(torch.ones(2), op=hvd.Sum, average=True),
        lambda: hvd.reducescatter(torch.ones(2), op=hvd.Max),
        lambda: hvd.allreduce(torch.ones(2, dtype=torch.complex64)),
    ):
        with pytest.raises(ValueError, match=r"expected|supersedes"):
            call()


def check_process_sets():
    if SIZE < 2:
        return
    even = hvd.add_process_set([rank for rank in RANKS if rank % 2 == 0])
    odd = hvd.add_process_set(hvd.ProcessSet([rank for rank in RANKS if rank % 2 == 1]))
    mine, other = (even, odd) if RANK % 2 == 0 else (odd, even)
    own = [rank for rank in RANKS if rank % 2 == RANK % 2]
    assert (mine.included(), mine.size(), mine.rank(), other.included()) == (
        True,
        len(own),
        own.index(RANK),
        False,
    )
    x = value(RANK, 2, "float32").requires_grad_()
    y = hvd.allreduce(x, op=hvd.Sum, process_set=mine)
    same(y, sum(numbers(value(rank, 2, "float32")) for rank in own), own)
    y.sum().backward()
    same(x.grad, np.full(tuple(x.shape), float(len(own))), own)
    same(hvd.broadcast(torch.tensor([float(RANK)]), own[-1], process_set=mine), np.array([float(own[-1])]), own)
    same(hvd.allgather(torch.tensor([RANK]), process_set=mine), np.array(own, float), own)
    same(hvd.reducescatter(torch.ones(len(own)), op=hvd.Sum, process_set=mine), np.array([float(len(own))]), own)
    same(hvd.alltoall(torch.full((len(own),), RANK), process_set=mine), np.array(own, float), own)
    both = [hvd.allreduce_async(torch.ones(1), op=hvd.Sum, process_set=s) for s in (mine, hvd.global_process_set)]
    assert [hvd.synchronize(handle).item() for handle in both] == [len(own), SIZE]
    hvd.barrier(mine)
    assert "is not a member" in error_of(lambda: hvd.allreduce(torch.ones(1), process_set=other))
    assert "exists already" in error_of(lambda: hvd.add_process_set(even.ranks))
    assert [hvd.remove_process_set(s) for s in (even, odd, even, hvd.global_process_set)] == [
        True,
        True,
        False,
        False,
    ]
    assert even.size() is None
    assert "is not in use" in error_of(lambda: hvd.allreduce(torch.ones(1), process_set=mine))


def check_objects():
    state = {"step": RANK, "weights": torch.full((2,), float(RANK)), "names": ["a", ("b", None)]}
    received = hvd.broadcast_object(state, SIZE - 1)
    assert (received["step"], received["weights"].tolist(), received["names"]) == (
        SIZE - 1,
        [SIZE - 1.0] * 2,
        ["a", ("b", None)],
    )
    assert hvd.allgather_object({"rank": RANK}) == [{"rank": rank} for rank in RANKS]


class Custom:
    def __init__(self, rank):
        self.rank = rank


def check_objects_never_unpickle_unasked():
    assert "allow_pickle" in error_of(lambda: hvd.allgather_object(Custom(RANK)))
    assert hvd.allgather_object(range(RANK + 1), allow_pickle=True) == [range(rank + 1) for rank in RANKS]


def check_queries():
    built = (
        hvd.mpi_built,
        hvd.gloo_built,
        hvd.nccl_built,
        hvd.ddl_built,
        hvd.ccl_built,
        hvd.cuda_built,
        hvd.rocm_built,
    )
    assert not any(query() for query in (*built, hvd.mpi_enabled, hvd.gloo_enabled, hvd.mpi_threads_supported))
    assert hvd.is_initialized()
    assert hvd.is_homogeneous()
    assert 0 <= hvd.local_rank() < hvd.local_size() <= SIZE
    assert 0 <= hvd.cross_rank() < hvd.cross_size() <= SIZE


def check_timeline():
    with tempfile.TemporaryDirectory() as folder:
        hvd.start_timeline(f"{folder}/trace.json")
        hvd.allreduce(torch.ones(3), name="traced")
        hvd.stop_timeline()
        path = Path(folder) / ("trace.json" if RANK == 0 else f"trace-rank{RANK}.json")
        events = json.loads(path.read_text())["traceEvents"]
        assert [event["name"] for event in events] == ["NEGOTIATE_ALLREDUCE", "ALLREDUCE"]
        assert {event["tid"] for event in events} == {"allreduce.traced"}


def check_shutdown_and_init_again():
    hvd.shutdown()
    assert not hvd.is_initialized()
    assert "init()" in error_of(lambda: hvd.allreduce(torch.ones(1)))


# With one rank there is nothing to disagree with.
for _name in ("shape", "dtype", "device", "op", "number_of_tensors", "root", "factors"):
    globals()[f"check_error_{_name}"] = only_where_ranks_can_differ(globals()[f"check_error_{_name}"])
