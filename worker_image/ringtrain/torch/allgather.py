"""Allgather: every rank's rows, one below the other."""

from collections.abc import Sequence
from typing import Any

import torch

from ringtrain.negotiation.queues import name_for
from ringtrain.negotiation.request import CollectiveKind, Request
from ringtrain.negotiation.splits import scalar_error
from ringtrain.process_groups.process_sets import ProcessSet, global_process_set
from ringtrain.torch.bridge import to_tensors
from ringtrain.torch.gradients import reduced
from ringtrain.torch.handles import TorchHandle, submit, synchronize


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> TorchHandle:
    """Begin to gather the rows of every rank's `tensor`; the number of rows may differ, the rest of the shape
    not.
    """
    return _submit([tensor], name_for("allgather", name, process_set), process_set, single=True)


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Return every rank's rows in rank order. The gradient of this rank's rows is the mean of what the ranks hold
    for them.
    """
    (gathered,) = _Allgather.apply(name_for("allgather", name, process_set), process_set, tensor)
    result: torch.Tensor = gathered
    return result


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> TorchHandle:
    """Begin to gather each of `tensors`, as one collective; `synchronize` returns a list."""
    return _submit(tensors, name_for("grouped_allgather", name, process_set), process_set)


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """Return each of `tensors` gathered, as one collective; gradients flow through."""
    return list(_Allgather.apply(name_for("grouped_allgather", name, process_set), process_set, *tensors))


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str, process_set: ProcessSet, *tensors: torch.Tensor) -> Any:
        ctx.name, ctx.process_set, ctx.rows = name, process_set, [len(t) if t.dim() else 0 for t in tensors]
        return tuple(synchronize(_submit(tensors, name, process_set)))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        request = Request(CollectiveKind.ALLREDUCE, f"{ctx.name}.grad", op="Average")
        means = reduced(grads, request, ctx.process_set)
        before = _rows_before(ctx.rows, ctx.name, ctx.process_set)
        own = [g[start : start + rows] for g, start, rows in zip(means, before, ctx.rows, strict=True)]
        return (None, None, *own)


def _rows_before(rows: Sequence[int], name: str, process_set: ProcessSet) -> list[int]:
    """Return how many rows of each tensor came from lower ranks."""
    own = torch.tensor([rows])
    everyone = synchronize(_submit([own], f"{name}.rows", process_set))[0]
    place = process_set.rank() or 0
    return [int(count) for count in everyone[:place].sum(dim=0)]


def _submit(
    tensors: Sequence[torch.Tensor], name: str, process_set: ProcessSet, single: bool = False
) -> TorchHandle:
    def finish(result: Sequence[Any]) -> Any:
        gathered = to_tensors(result, tensors)
        return gathered[0] if single else gathered

    error = scalar_error([tensor.shape for tensor in tensors])
    return submit(Request(CollectiveKind.ALLGATHER, name), tensors, process_set, finish, error)
