"""Checks of what ringtrain.torch's collectives raise where ranks disagree, run on every rank of a world."""

import json
import os
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from torch_values import RANK, SIZE, assert_differs, error_of

import ringtrain as rt
import ringtrain.torch as hvd

RUN_IN = [
    {"framework": "ringtrain.torch", "ranks": [1, 3], "each": {"RINGTRAIN_TEST_DEVICE": ["cpu", "cuda"]}},
    {
        "framework": "ringtrain.torch",
        "ranks": [2],
        "each": {"RINGTRAIN_TEST_DEVICE": ["cpu", "cuda"]},
        "tests": ["test_error_dtype"],
    },
    {
        "framework": "ringtrain.torch",
        "name": "over-torch",
        "ranks": [3],
        "env": {"RINGTRAIN_TRANSPORT": "torch"},
        "each": {"RINGTRAIN_TEST_DEVICE": ["cpu", "cuda"]},
    },
]


def only_where_ranks_can_differ(check):
    return check if SIZE > 1 else lambda: None


def test_error_shape():
    error = error_of(lambda: hvd.allreduce(torch.ones(3 if RANK else 2), name="w"))
    assert_differs(error, "shape", "(2,) on rank 0 and (3,) on rank 1")
    error = error_of(lambda: hvd.allgather(torch.ones(2, 3 if RANK else 2), name="w"))
    assert_differs(error, "shape after the first dimension", "on rank 0 and")


def test_error_shape_after_steps_that_were_alike():
    """One tensor of several has another shape: the others are reduced, and so is the next step."""
    names = ["a", "b", "c"]

    def step(shapes: dict[str, int]) -> dict:
        return {n: hvd.allreduce_async(torch.ones(shapes.get(n, 2)), name=n, op=hvd.Sum) for n in names}

    for shapes in ({}, {}, {"b": 3 if RANK else 2}, {}):
        handles = step(shapes)
        if shapes and SIZE > 1:
            error = error_of(partial(hvd.synchronize, handles.pop("b")))
            assert_differs(error, "'allreduce.b'", "shape", "(2,) on rank 0 and (3,) on rank 1")
        for handle in handles.values():
            assert hvd.synchronize(handle).tolist() == [SIZE] * 2


def test_error_dtype():
    tensor = torch.ones(2, dtype=torch.float32 if RANK == 0 else torch.int64)
    for call in (hvd.allreduce, hvd.allgather, lambda t: hvd.broadcast(t, 0), hvd.alltoall, hvd.reducescatter):
        if call is not hvd.alltoall or SIZE == 2:
            assert_differs(error_of(lambda c=call: c(tensor)), "dtype", "float32 on rank 0 and int64 on rank 1")


def test_error_device():
    """Ranks compare the device types of their tensors; meta represents any device other than the CPU."""
    from ringtrain._core.negotiation.queues import queue_of
    from ringtrain._core.negotiation.request import CollectiveKind, NamedRequest

    device = "cpu" if RANK == 0 else "cuda"
    request = NamedRequest(CollectiveKind.ALLREDUCE, "d", ("float32",), ((2,),), op="Sum", device=device)
    future = queue_of(hvd.global_process_set).submit(request, lambda: [np.ones(2, np.float32)])
    assert_differs(error_of(future.result), "device is cpu on rank 0 and cuda on rank 1")


def test_error_tensor_without_data():
    """Rank 0's tensor is on the meta device, alone or in a group; every rank raises the error."""
    device = "meta" if RANK == 0 else "cpu"
    error = error_of(lambda: hvd.allreduce(torch.ones(2, device=device), name="m"))
    assert_differs(error, "rank 0: allreduce 'allreduce.m': its tensors are on the meta device")
    mixed = [torch.ones(2), torch.ones(2, device=device)]
    error = error_of(lambda: hvd.grouped_allreduce(mixed, name="m"))
    assert_differs(error, "rank 0", "its tensors are on cpu and meta; expected one device")


def test_error_op():
    error = error_of(lambda: hvd.allreduce(torch.ones(2), name="o", op=hvd.Sum if RANK == 0 else hvd.Max))
    assert_differs(error, "op is Sum on rank 0 and Max on rank 1")


def test_error_number_of_tensors():
    tensors = [torch.ones(2)] * (1 + min(RANK, 1))
    assert_differs(error_of(lambda: hvd.grouped_allreduce(tensors, name="g")), "dtype is float32 on rank 0 and")


def test_error_no_tensor():
    """The argument is wrong on one rank alone, too; the ranks continue."""
    assert_differs(error_of(lambda: hvd.grouped_allreduce([])), "got no tensor")
    assert_differs(error_of(lambda: hvd.grouped_allgather([])), "got no tensor")
    if SIZE > 1:
        error = error_of(lambda: hvd.grouped_allreduce([torch.ones(2)] * min(RANK, 1), name="g"))
        assert_differs(error, "rank 0: allreduce 'grouped_allreduce.g': got no tensor")


def test_error_shape_of_sparse_tensors():
    """Entries that lie within no rank's shape but their own."""
    rows = 3 + min(RANK, 1)
    sparse = torch.sparse_coo_tensor([[0, rows - 1]], torch.ones(2, 2), (rows, 2))
    if SIZE > 1:
        error = error_of(lambda: hvd.sparse_allreduce_async(sparse, "s")())
        assert_differs(error, "shape", "(0, 3, 2)) on rank 0", "(0, 4, 2)) on rank 1")


def test_a_report_of_a_loss_that_requires_a_gradient():
    """The report contains the number, and torch does not warn."""
    read, write = os.pipe()
    os.environ["RINGTRAIN_REPORT_FD"] = str(write)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            weight = torch.full((1,), 3.0, requires_grad=True)
            rt.report(1, loss=weight.square().sum(), metrics={"weight": weight})
        assert json.loads(os.read(read, 1 << 16))["loss"] == 9.0
    finally:
        del os.environ["RINGTRAIN_REPORT_FD"]
        os.close(read), os.close(write)


def test_error_layout():
    """Tensors without contiguous elements are refused when they are submitted; the ranks continue."""
    for tensor in (torch.eye(2).to_sparse_csr(), torch.ones(2, device="cpu").to_mkldnn()):
        error = error_of(lambda given=tensor: hvd.allreduce(given))
        assert_differs(error, f"a tensor has layout {tensor.layout}, which cannot be sent; call to_dense() first")
    assert hvd.allreduce(torch.ones(2)).tolist() == [1, 1]


def test_error_root():
    error = error_of(lambda: hvd.broadcast(torch.ones(2), min(RANK, 1)))
    assert_differs(error, "root rank is 0 on rank 0 and 1 on rank 1")


def test_error_root_outside():
    assert_differs(error_of(lambda: hvd.broadcast(torch.ones(2), SIZE)), f"root rank is {SIZE}", "expected one of")


def test_error_factors():
    error = error_of(lambda: hvd.allreduce(torch.ones(2), prescale_factor=1.0 + min(RANK, 1)))
    assert_differs(error, "prescale factor is 1.0 on rank 0 and 2.0 on rank 1")
    error = error_of(lambda: hvd.allreduce(torch.ones(2), postscale_factor=1.0 + min(RANK, 1)))
    assert_differs(error, "postscale factor is 1.0 on rank 0 and 2.0 on rank 1")


def test_error_name_in_flight():
    """The second of two submissions under one name fails; the first is not harmed."""
    if RANK > 0:  # rank 0 has not submitted it yet
        first = hvd.allreduce_async(torch.ones(2), name="twice", op=hvd.Sum)
        with pytest.raises(ValueError, match=f"rank {RANK}: .*'allreduce.twice'.* still in flight"):
            hvd.allreduce_async(torch.ones(2), name="twice", op=hvd.Sum)
    rt.barrier()
    if RANK == 0:
        first = hvd.allreduce_async(torch.ones(2), name="twice", op=hvd.Sum)
    assert hvd.synchronize(first).tolist() == [SIZE] * 2


def test_error_scalar():
    for call in (hvd.allgather, hvd.alltoall, hvd.reducescatter):
        assert_differs(error_of(lambda c=call: c(torch.tensor(1.0))), "rank 0", "is a scalar")


def test_error_splits():
    """Rank 0's splits are wrong; every rank raises the error."""
    wrong = {
        "entries": [1] * (SIZE + 1),
        "add up to": [3] * SIZE,
        "negative": [-1] * SIZE,
        "whole numbers": [1.25] * SIZE,
    }
    for words, splits in wrong.items():
        own = splits if RANK == 0 else [1] * SIZE
        assert_differs(error_of(lambda s=own: hvd.alltoall(torch.ones(SIZE), s)), "rank 0", words)


def test_error_rows_that_do_not_divide():
    if SIZE > 1:
        assert_differs(error_of(lambda: hvd.alltoall(torch.ones(SIZE + 1))), "divided equally among")


def test_error_op_that_is_none():
    for call in (
        lambda: hvd.allreduce(torch.ones(2), op="median"),
        lambda: hvd.allreduce(torch.ones(2), op=hvd.Sum, average=True),
        lambda: hvd.reducescatter(torch.ones(2), op=hvd.Max),
        lambda: hvd.allreduce(torch.ones(2, dtype=torch.complex64), op=hvd.Max),
    ):
        with pytest.raises(ValueError, match=r"expected|pass only op"):
            call()


# With one rank there is nothing to disagree with.
for _name in ("shape", "dtype", "device", "op", "number_of_tensors", "root", "factors"):
    globals()[f"test_error_{_name}"] = only_where_ranks_can_differ(globals()[f"test_error_{_name}"])


def test_what_is_no_tensor_is_refused_in_words():
    """Every collective refuses it before another rank waits."""
    calls = [hvd.allreduce, hvd.allreduce_, hvd.allgather, hvd.reducescatter, hvd.alltoall]
    calls += [lambda value: hvd.broadcast(value, 0), lambda value: hvd.broadcast_(value, 0)]
    calls += [lambda value: hvd.grouped_allreduce([value]), lambda value: hvd.grouped_allgather([value])]
    for call in calls:
        for value, name in ((None, "None"), (3.0, "a float")):
            with pytest.raises(ValueError, match=f"a collective was given {name}; expected a torch.Tensor"):
                call(value)
