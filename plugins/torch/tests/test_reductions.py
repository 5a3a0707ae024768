"""Checks of allreduce and reducescatter of ringtrain.torch against numpy, run on every rank of a world."""

import numpy as np
import pytest
import torch
from torch import nn
from torch_values import (
    DIMS,
    FLOATS,
    FOLDS,
    INTEGERS,
    RANK,
    RANKS,
    SIZE,
    cases,
    error_of,
    numbers,
    reduced,
    rows_of,
    same,
    stacked,
    value,
)

import ringtrain.torch as hvd

RUN_IN = [
    {"framework": "ringtrain.torch", "ranks": [1, 3], "each": {"RINGTRAIN_TEST_DEVICE": ["cpu", "cuda"]}},
    {
        "framework": "ringtrain.torch",
        "ranks": [2],
        "each": {"RINGTRAIN_TEST_DEVICE": ["cpu", "cuda"]},
        "tests": ["test_adasum"],
    },
    {
        "framework": "ringtrain.torch",
        "name": "over-torch",
        "ranks": [3],
        "env": {"RINGTRAIN_TRANSPORT": "torch"},
        "each": {"RINGTRAIN_TEST_DEVICE": ["cpu", "cuda"]},
    },
    {
        "framework": "ringtrain.torch",
        "name": "over-torch",
        "ranks": [2],
        "env": {"RINGTRAIN_TRANSPORT": "torch"},
        "each": {"RINGTRAIN_TEST_DEVICE": ["cpu", "cuda"]},
        "tests": ["test_adasum"],
    },
]


def test_allreduce_forward():
    handles = {case: hvd.allreduce_async(value(RANK, case[1], case[0]), op=getattr(hvd, case[2])) for case in cases()}
    for case, handle in handles.items():
        result = hvd.synchronize(handle)
        assert hvd.poll(handle)
        assert result.dtype is getattr(torch, case[0])
        same(result, reduced(case[1], case[0], case[2]), case, case[0])


def test_allreduce_in_place():
    tensors = {case: value(RANK, case[1], case[0]) for case in cases()}
    handles = {case: hvd.allreduce_async_(tensor, op=getattr(hvd, case[2])) for case, tensor in tensors.items()}
    for case, handle in handles.items():
        assert hvd.synchronize(handle) is tensors[case]
        same(tensors[case], reduced(case[1], case[0], case[2]), case, case[0])
    tensor = value(RANK, 2, "float32")
    assert hvd.allreduce_(tensor, op=hvd.Sum) is tensor
    same(tensor, reduced(2, "float32", "Sum"), "not asynchronous")


def test_allreduce_of_tensors_that_are_not_contiguous():
    tensor = value(RANK, 2, "float32").t()
    same(hvd.allreduce(tensor, op=hvd.Sum), reduced(2, "float32", "Sum").T, "transposed")
    hvd.allreduce_(tensor, op=hvd.Sum)
    same(tensor, reduced(2, "float32", "Sum").T, "transposed, in place")


def test_allreduce_of_scalars_and_empty_tensors():
    assert hvd.allreduce(torch.tensor(float(RANK)), op=hvd.Sum).item() == sum(RANKS)
    assert hvd.allreduce(torch.tensor(RANK), op=hvd.Average).item() == int(sum(RANKS) / SIZE)
    assert hvd.allreduce(torch.empty(0, 3)).shape == (0, 3)


def allreduced(tensors: dict[str, torch.Tensor], begin=hvd.allreduce_async, **how) -> dict[str, torch.Tensor]:
    handles = {name: begin(tensor, name=name, **how) for name, tensor in tensors.items()}
    return {name: hvd.synchronize(handle) for name, handle in handles.items()}


def small(step: int, scale: int = RANK + 1) -> dict[str, torch.Tensor]:
    """Tensors of all kinds that are packed together in a step, among them those of each type."""
    shapes = {"matrix": (3, 5), "scalar": (), "empty": (0, 2), "vector": (7,)}
    return {
        f"{dtype}.{name}": torch.full(shape, scale * (step + 1)).to(getattr(torch, dtype))
        for dtype in ("float32", "bfloat16", "int16", "int64")
        for name, shape in shapes.items()
    }


def test_results_of_steps_that_are_alike_belong_to_the_user():
    """No later step writes to them, and no two of them share memory or a count of writes."""
    steps = [allreduced(small(step), op=hvd.Sum) for step in range(4)]
    for step, results in enumerate(steps):
        for name, expected in small(step, sum(rank + 1 for rank in RANKS)).items():
            assert results[name].dtype is expected.dtype
            assert results[name].equal(expected), name
            assert results[name].untyped_storage().nbytes() == expected.untyped_storage().nbytes(), name
    written, beside = steps[-1]["float32.matrix"], steps[-1]["float32.vector"]
    version = beside._version
    written.zero_()
    assert beside._version == version
    assert beside.ne(0).all()


def test_steps_that_are_alike_in_place():
    for step in range(3):
        tensors = small(step)
        tensors["parameter"] = nn.Parameter(torch.full((2,), 1.0 + RANK))
        version = tensors["float32.matrix"]._version
        results = allreduced(tensors, hvd.allreduce_async_, op=hvd.Sum)
        assert all(results[name] is tensor for name, tensor in tensors.items())
        assert tensors["float32.matrix"]._version > version
        for name, expected in small(step, sum(rank + 1 for rank in RANKS)).items():
            assert tensors[name].equal(expected), name
        assert tensors["parameter"].tolist() == [sum(rank + 1.0 for rank in RANKS)] * 2


def test_a_step_unlike_the_one_before():
    """Another shape, type, operation or factor under the same name, or one rank whose tensor has to be copied."""
    names = ["a", "b", "c"]
    for _ in range(3):
        allreduced({name: torch.ones(2, 3) for name in names}, op=hvd.Sum)
    changes = [
        (torch.ones(3, 2), {"op": hvd.Sum}, torch.full((3, 2), float(SIZE))),
        (torch.ones(2, 3, dtype=torch.float64), {"op": hvd.Sum}, torch.full((2, 3), float(SIZE)).double()),
        (torch.full((2, 3), RANK + 1.0), {"op": hvd.Max}, torch.full((2, 3), float(SIZE))),
        (torch.ones(2, 3), {}, torch.ones(2, 3)),
        (torch.ones(2, 3), {"op": hvd.Sum, "prescale_factor": 3.0}, torch.full((2, 3), 3.0 * SIZE)),
        (torch.ones(2, 3), {"op": hvd.Sum, "postscale_factor": 0.5}, torch.full((2, 3), 0.5 * SIZE)),
        (torch.ones(2, 3) if RANK else torch.ones(3, 2).t(), {"op": hvd.Sum}, torch.full((2, 3), float(SIZE))),
    ]
    for tensor, how, expected in changes:
        for _ in range(2):
            results = allreduced({"a": torch.ones(2, 3), "b": tensor, "c": torch.ones(2, 3)}, **how)
            assert results["b"].equal(expected), how


def test_what_is_reduced_is_the_memory_that_was_submitted():
    for _ in range(3):
        tensors = {name: torch.ones(2) for name in ("a", "b")}
        handles = [hvd.allreduce_async(tensor, name=name, op=hvd.Sum) for name, tensor in tensors.items()]
        tensors["a"].data = torch.zeros(3)
        assert [hvd.synchronize(handle).tolist() for handle in handles] == [[SIZE] * 2] * 2


def test_allreduce_of_bools():
    tensor = torch.tensor([RANK == 0, True, False])
    assert hvd.allreduce(tensor, op=hvd.Max).tolist() == [True, True, False]
    assert hvd.allreduce(tensor, op=hvd.Min).tolist() == [SIZE == 1, True, False]


def test_nan_of_any_rank_is_in_the_result():
    """Libraries of devices may have one that only the first rank's is in."""
    for dtype in (torch.float32, torch.bfloat16):
        for rank in RANKS:
            tensor = torch.tensor([float("nan") if rank == RANK else 1.0, 2.0]).to(dtype)
            for op in (hvd.Min, hvd.Max, hvd.Product, hvd.Sum):
                first, second = hvd.allreduce(tensor, op=op).isnan().tolist()
                assert (first, second) == (True, False), (dtype, rank, op)


def test_averages_of_integers_are_exact():
    """Averages are exact even for integers beyond float64's precision, and rounded towards zero."""
    tensor = torch.tensor([2**60 + 1, -(2**60) - 1, 2**53 + 1, SIZE - RANK, RANK - SIZE])
    total = SIZE * (SIZE + 1) // 2
    expected = [2**60 + 1, -(2**60) - 1, 2**53 + 1, total // SIZE, -(total // SIZE)]
    assert hvd.allreduce(tensor, op=hvd.Average).tolist() == expected


def test_factors_of_integers_keep_all_digits():
    """Products are exact even for integers beyond float64's precision."""
    tensor = torch.tensor([2**55 + 1, -(2**55) - 1, 2**53 + 1])
    doubled = hvd.allreduce(tensor, op=hvd.Max, prescale_factor=2.0)
    assert doubled.tolist() == [2**56 + 2, -(2**56) - 2, 2**54 + 2]
    assert hvd.allreduce(doubled, op=hvd.Max, postscale_factor=0.5).tolist() == tensor.tolist()


def test_allreduce_factors():
    for dtype in FLOATS:
        result = hvd.allreduce(value(RANK, 2, dtype), op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
        same(result, 1.5 * reduced(2, dtype, "Sum"), dtype, dtype)
    result = hvd.allreduce(value(RANK, 1, "int32"), op=hvd.Sum, postscale_factor=2.0)
    same(result, 2 * reduced(1, "int32", "Sum"), "int32")


def test_allreduce_average_argument():
    tensor = value(RANK, 1, "float32")
    same(hvd.allreduce(tensor, average=False), reduced(1, "float32", "Sum"), "average=False")
    same(hvd.allreduce(tensor, average=True), reduced(1, "float32", "Average"), "average=True", "float32")


def test_allreduce_gradient():
    """Ranks weigh their outputs differently, so that a gradient of the wrong rank shows."""
    for dtype, dim, op in cases(FLOATS):
        x = value(RANK, dim, dtype).requires_grad_()
        y = hvd.allreduce(x, op=getattr(hvd, op), prescale_factor=2.0)
        y.backward(torch.full_like(y, RANK + 1.0))
        assert x.grad.dtype is getattr(torch, dtype)
        same(x.grad, allreduce_gradient(dim, dtype, op), (dtype, dim, op), dtype)


def allreduce_gradient(dim: int, dtype: str, op: str) -> np.ndarray:
    inputs, total = stacked(dim, dtype), sum(rank + 1.0 for rank in RANKS)
    if op in ("Sum", "Average"):
        return np.full(inputs[0].shape, 2 * total / (SIZE if op == "Average" else 1))
    if op == "Product":
        return total * 2**SIZE * np.prod(np.delete(inputs, RANK, axis=0), axis=0)
    held = inputs == FOLDS[op](inputs, axis=0)
    return 2 * total * held[RANK] / held.sum(axis=0)


def test_gradient_of_scaled_extremes():
    """Rounding by a factor that halves: the rank with the extreme value is found, and the gradient is not NaN."""
    for dtype, dim, op in cases(FLOATS):
        if op in ("Min", "Max"):
            x = value(RANK, dim, dtype).requires_grad_()
            y = hvd.allreduce(x, op=getattr(hvd, op), prescale_factor=0.3, postscale_factor=0.7)
            y.backward(torch.ones_like(y))
            everyone = hvd.allreduce(x.grad.float(), op=hvd.Sum)
            torch.testing.assert_close(everyone, torch.full_like(everyone, SIZE * 0.21), rtol=2e-2, atol=0.0)


def test_allreduce_compressed():
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        result = hvd.allreduce(value(RANK, 2, "float32"), compression=compression, op=hvd.Sum)
        assert result.dtype is torch.float32
        same(result, reduced(2, "float32", "Sum"), compression)
        integers = hvd.allreduce(value(RANK, 2, "int64"), compression=compression, op=hvd.Sum)
        same(integers, reduced(2, "int64", "Sum"), compression)


def test_grouped_allreduce():
    for dtype in (*FLOATS, *INTEGERS):
        for op in FOLDS:
            chosen = getattr(hvd, op)
            inputs = [value(RANK, dim, dtype) for dim in DIMS]
            later = hvd.grouped_allreduce_async(inputs, op=chosen)
            results = hvd.grouped_allreduce(inputs, op=chosen)
            in_place = hvd.synchronize(hvd.grouped_allreduce_async_(inputs, op=chosen))
            for dim, *given in zip(DIMS, results, hvd.synchronize(later), in_place, inputs, strict=True):
                for result in given:
                    same(result, reduced(dim, dtype, op), (dtype, dim, op), dtype)
    mixed = [value(RANK, 1, "float32"), value(RANK, 2, "int64")]
    assert hvd.grouped_allreduce_(mixed, op=hvd.Max)[1] is mixed[1]
    same(mixed[0], reduced(1, "float32", "Max"), "mixed dtypes")
    same(mixed[1], reduced(2, "int64", "Max"), "mixed dtypes")


def test_grouped_allreduce_gradient():
    for dtype in FLOATS:
        for op in FOLDS:
            xs = [value(RANK, dim, dtype).requires_grad_() for dim in DIMS]
            ys = hvd.grouped_allreduce(xs, op=getattr(hvd, op), prescale_factor=2.0)
            torch.autograd.backward(ys, [torch.full_like(y, RANK + 1.0) for y in ys])
            for dim, x in zip(DIMS, xs, strict=True):
                same(x.grad, allreduce_gradient(dim, dtype, op), (dtype, dim, op), dtype)


def test_backward_through_a_group_one_by_one():
    """Autograd can differentiate each output of a grouped collective separately, as in Horovod."""
    for op in FOLDS:
        xs = [value(RANK, dim, "float32").requires_grad_() for dim in DIMS]
        for y in hvd.grouped_allreduce(xs, op=getattr(hvd, op), prescale_factor=2.0):
            y.backward(torch.full_like(y, RANK + 1.0))
        for dim, x in zip(DIMS, xs, strict=True):
            same(x.grad, allreduce_gradient(dim, "float32", op), (dim, op), "float32")
    for grouped in (hvd.grouped_allgather, hvd.grouped_reducescatter):
        xs = [value(RANK, dim, "float32", SIZE).requires_grad_() for dim in DIMS]
        for y in grouped(xs):
            y.backward(torch.ones_like(y))
        for x in xs:
            same(x.grad, np.ones(tuple(x.shape)), grouped, "float32")


def test_backward_after_a_tensor_was_overwritten():
    """The gradient of Min, Max and Product needs input and output: one that has changed is an error."""
    for op in (hvd.Min, hvd.Max, hvd.Product):
        x = value(RANK, 1, "float32").requires_grad_()
        own = x * 1
        y = hvd.allreduce(own, op=op)
        with torch.no_grad():
            own.mul_(2)
        with pytest.raises(RuntimeError, match="was overwritten between forward and backward"):
            y.sum().backward()


def test_second_derivative():
    """The collective's part of the derivative would be missing; if that part is zero, the derivative is correct."""
    x = value(RANK, 1, "float32").requires_grad_()
    for collective in (hvd.allreduce, hvd.allgather, lambda x: hvd.broadcast(x, 0)):
        (grad,) = torch.autograd.grad((collective(x).sum() + (x**3).sum()), x, create_graph=True)
        same(torch.autograd.grad(grad.sum(), x)[0], 6 * numbers(x), collective, "float32")
        (grad,) = torch.autograd.grad((collective(x) ** 3).sum() + (x**3).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="differentiate twice"):
            grad.sum().backward()


def adasum_reference(arrays: list[np.ndarray]) -> np.ndarray:
    if len(arrays) == 1:
        return arrays[0]
    a, b = adasum_reference(arrays[: len(arrays) // 2]), adasum_reference(arrays[len(arrays) // 2 :])
    dot = (a * b).sum()
    return (1 - dot / (2 * (a * a).sum())) * a + (1 - dot / (2 * (b * b).sum())) * b


def test_adasum():
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


def test_reducescatter():
    for dtype, dim, op in cases(ops=["Sum", "Average"]):
        for rows in (2 * SIZE, SIZE + 1):
            result = hvd.reducescatter(value(RANK, dim, dtype, rows), op=getattr(hvd, op))
            same(result, reduced(dim, dtype, op, rows)[rows_of(RANK, rows)], (dtype, dim, op, rows), dtype)


def test_reducescatter_fewer_rows_than_ranks():
    result = hvd.reducescatter(torch.ones(1, 2), op=hvd.Sum)
    same(result, np.full((1 if RANK == 0 else 0, 2), float(SIZE)), "one row")


def test_reducescatter_factors_and_compression():
    tensor = value(RANK, 2, "float32", SIZE)
    result = hvd.reducescatter(
        tensor, op=hvd.Sum, compression=hvd.Compression.fp16, prescale_factor=2.0, postscale_factor=0.5
    )
    expected = sum(numbers(value(rank, 2, "float32", SIZE)) for rank in RANKS)
    same(result, expected[rows_of(RANK, SIZE)], "factors")


def test_reducescatter_gradient():
    for dtype, dim, op in cases(FLOATS, ["Sum", "Average"]):
        x = value(RANK, dim, dtype, 2 * SIZE).requires_grad_()
        y = hvd.reducescatter(x, op=getattr(hvd, op))
        y.backward(torch.full_like(y, RANK + 1.0))
        same(x.grad, reducescatter_gradient(x, op), (dtype, dim, op), dtype)


def reducescatter_gradient(x: torch.Tensor, op: str) -> np.ndarray:
    lengths = [len(range(*rows_of(rank, len(x)).indices(len(x)))) for rank in RANKS]
    rows = np.repeat([rank + 1.0 for rank in RANKS], lengths).reshape((-1,) + (1,) * (x.dim() - 1))
    return (SIZE if op == "Sum" else 1) * rows * np.ones(tuple(x.shape))


def test_grouped_reducescatter():
    for dtype in (*FLOATS, *INTEGERS):
        for op in ("Sum", "Average"):
            xs = [value(RANK, dim, dtype, SIZE + dim) for dim in DIMS]
            later = hvd.grouped_reducescatter_async(xs, op=getattr(hvd, op))
            for results in (hvd.grouped_reducescatter(xs, op=getattr(hvd, op)), hvd.synchronize(later)):
                for dim, result in zip(DIMS, results, strict=True):
                    expected = reduced(dim, dtype, op, SIZE + dim)[rows_of(RANK, SIZE + dim)]
                    same(result, expected, (dtype, dim, op), dtype)


def test_grouped_reducescatter_gradient():
    for dtype in FLOATS:
        for op in ("Sum", "Average"):
            xs = [value(RANK, dim, dtype, SIZE + dim).requires_grad_() for dim in DIMS]
            ys = hvd.grouped_reducescatter(xs, op=getattr(hvd, op))
            torch.autograd.backward(ys, [torch.full_like(y, RANK + 1.0) for y in ys])
            for x in xs:
                same(x.grad, reducescatter_gradient(x, op), (dtype, op), dtype)


def test_sparse_allreduce():
    """Ranks have different entries, and one in common."""
    sparse = torch.sparse_coo_tensor([[0, RANK + 1]], [float(RANK), 1.0], (SIZE + 1,))
    for op, divisor in ((hvd.Sum, 1), (hvd.Average, SIZE)):
        expected = np.array([sum(RANKS), *[1.0] * SIZE]) / divisor
        same(hvd.sparse_allreduce_async(sparse, "s", op)().to_dense(), expected, op, "float32")
        same(hvd.synchronize(hvd.sparse_allreduce_async(sparse, "s", op)).to_dense(), expected, op, "float32")
    for dtype in FLOATS:
        for dim in DIMS:
            # One sparse dimension before dense ones.
            rows = torch.sparse_coo_tensor([[0, RANK + 1]], value(RANK, dim, dtype, 2), (SIZE + 1, *(3,) * (dim - 1)))
            dense = np.zeros((SIZE + 1, *(3,) * (dim - 1)))
            for rank in RANKS:
                dense[[0, rank + 1]] += numbers(value(rank, dim, dtype, 2))
            same(hvd.sparse_allreduce_async(rows, "rows", hvd.Sum)().to_dense(), dense, (dtype, dim), dtype)
    empty = torch.sparse_coo_tensor(torch.empty(1, 0), torch.empty(0), (3,))
    assert hvd.sparse_allreduce_async(empty, "e", hvd.Sum)().to_dense().tolist() == [0.0, 0.0, 0.0]


def test_complex_tensors():
    """Every collective takes them, with gradients; what needs an order does not."""
    for dtype in (torch.complex64, torch.complex128):
        values = [torch.complex(torch.arange(4.0) + rank, torch.arange(4.0) * rank).to(dtype) for rank in RANKS]
        own = values[RANK].clone().requires_grad_()
        for op, expected in ((hvd.Sum, sum(values)), (hvd.Average, sum(values) / SIZE)):
            assert torch.allclose(hvd.allreduce(own.detach(), op=op), expected)
            scaled = hvd.allreduce(own.detach(), op=op, prescale_factor=2.0, postscale_factor=0.5)
            assert torch.allclose(scaled, expected)
        assert torch.allclose(hvd.allreduce_(values[RANK].clone(), op=hvd.Sum, name="z"), sum(values))
        several = hvd.grouped_allreduce([values[RANK], values[RANK][:2], torch.tensor(1j).to(dtype)], op=hvd.Sum)
        assert [one.shape for one in several] == [(4,), (2,), ()]
        assert several[2] == SIZE * 1j
        assert torch.equal(hvd.allgather(values[RANK]), torch.cat(values))
        assert torch.equal(hvd.broadcast(values[RANK], SIZE - 1), values[-1])
        rows = hvd.reducescatter(values[RANK][:, None].expand(4, 2).contiguous(), op=hvd.Sum)
        assert rows.dtype is dtype
        hvd.allreduce(own, op=hvd.Sum).abs().sum().backward()
        assert own.grad.dtype is dtype
    with pytest.raises(ValueError, match="complex64 can't be reduced with Min; expected Sum or Average"):
        hvd.allreduce(torch.ones(2, dtype=torch.complex64), op=hvd.Min)


def test_averages_of_integers_never_wrap():
    """Averages equal Python's, rounded towards zero, at the limits of each type, too; sums wrap like torch's."""
    for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64):
        info = torch.iinfo(dtype)
        for low, high in ((info.max, info.max), (info.min, info.min), (info.max, info.min), (info.min + 3, 7)):
            numbers = [[low, high, 5, -7 if info.min else 3][(index + rank) % 4] for rank in RANKS for index in (0,)]
            own = torch.tensor([numbers[RANK]] * 3, dtype=dtype)
            total = sum(numbers)
            mean = abs(total) // SIZE * (1 if total >= 0 else -1)
            assert hvd.allreduce(own).tolist() == [mean] * 3, (dtype, numbers)
            assert hvd.grouped_allreduce([own, own])[1].tolist() == [mean] * 3
            assert hvd.reducescatter(own.repeat(SIZE)).tolist() == [mean] * 3
            wrapped = torch.tensor(numbers, dtype=dtype).sum(dtype=dtype)
            assert hvd.allreduce(own, op=hvd.Sum).tolist() == [wrapped.item()] * 3
