"""Alltoall: rows of every rank to every rank."""

from collections.abc import Sequence
from typing import Any

import torch

from ringtrain.negotiation.queues import name_for
from ringtrain.negotiation.request import CollectiveKind, Request
from ringtrain.negotiation.splits import splits_error
from ringtrain.process_groups.process_sets import ProcessSet, global_process_set, members
from ringtrain.torch.bridge import to_tensor
from ringtrain.torch.handles import TorchHandle, submit, synchronize


def alltoall_async(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> TorchHandle:
    """Begin to send `splits[i]` rows of `tensor` to rank i of the set (default: equal parts).

    `synchronize` returns the rows received, in rank order, and with `splits` also how many came from each rank.
    """
    handle = _submit(tensor, _ints(splits), name_for("alltoall", name, process_set), process_set)
    return handle if splits is not None else TorchHandle(handle.future, lambda result: result[0])


def alltoall(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return what `alltoall_async` promises; gradients flow back the way that the rows came."""
    name = name_for("alltoall", name, process_set)
    output, received = _Alltoall.apply(tensor, _ints(splits), name, process_set)
    return output if splits is None else (output, received)


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, splits: tuple[int, ...] | None, name: str, process_set: ProcessSet
    ) -> Any:
        output, received = synchronize(_submit(tensor, splits, name, process_set))
        ctx.name, ctx.process_set, ctx.received = name, process_set, _ints(received)
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        back, _ = synchronize(_submit(grads[0], ctx.received, f"{ctx.name}.grad", ctx.process_set))
        return (back, None, None, None)


def _submit(
    tensor: torch.Tensor, splits: tuple[int, ...] | None, name: str, process_set: ProcessSet
) -> TorchHandle:
    def finish(result: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        return to_tensor(result[0], tensor.device), to_tensor(result[1])

    error = splits_error(tuple(tensor.shape), splits, members(process_set))
    request = Request(CollectiveKind.ALLTOALL, name, splits=splits)
    return submit(request, [tensor], process_set, finish, error)


def _ints(splits: Any) -> tuple[int, ...] | None:
    if splits is None:
        return None
    values = splits.tolist() if isinstance(splits, torch.Tensor) else splits
    return tuple(int(value) for value in values)
