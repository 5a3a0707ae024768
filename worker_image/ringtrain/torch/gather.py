"""Allgather, broadcast and alltoall, and join for ranks whose data ends early."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ringtrain._core.negotiation import arrays, queues
from ringtrain._core.negotiation.queues import name_for, queue_of
from ringtrain._core.negotiation.request import CollectiveKind, NamedRequest, request_splits_error, scalar_error
from ringtrain._core.negotiation.submission import Finish
from ringtrain._core.process_groups.process_sets import ProcessSet, global_process_set, members
from ringtrain.torch.bridge import to_tensor
from ringtrain.torch.handles import (
    TorchHandle,
    check_tensors,
    differentiable,
    first_of_torch_handle,
    on_host,
    submit_torch_request,
    synchronize,
)


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> TorchHandle:
    """Begin to gather the rows of every rank's `tensor`; `synchronize` returns a new tensor with all rows.

    The number of rows may differ between ranks; dtype and the rest of the shape are the same on all ranks.
    """
    return first_of_torch_handle(_torch_allgather([tensor], name_for("allgather", name, process_set), process_set))


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Return every rank's rows in rank order. The gradient of this rank's rows is the mean of what the ranks hold
    for them.
    """
    return _torch_allgathered([tensor], name_for("allgather", name, process_set), process_set)[0]


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> TorchHandle:
    """Begin to gather each of `tensors`, as one collective; `synchronize` returns a list."""
    return _torch_allgather(tensors, name_for("grouped_allgather", name, process_set), process_set)


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """Return each of `tensors` gathered, as one collective; gradients flow through."""
    return _torch_allgathered(tensors, name_for("grouped_allgather", name, process_set), process_set)


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> TorchHandle:
    """Begin to send the tensor of `root_rank` (a rank of the world) to all; `synchronize` returns a new tensor.

    `tensor`: the same shape and dtype on all ranks; its values count on `root_rank` alone.
    """
    return first_of_torch_handle(_broadcast(tensor, root_rank, name_for("broadcast", name, process_set), process_set))


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> TorchHandle:
    """Like `broadcast_async`, with the result written into `tensor`, which is also what `synchronize` returns."""

    def finish(result: Any) -> torch.Tensor:
        with torch.no_grad():
            return tensor.detach().copy_(to_tensor(result[0])) if queue_of(process_set).rank != root_rank else tensor

    return _broadcast(tensor, root_rank, name_for("broadcast", name, process_set), process_set, finish)


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Overwrite `tensor` with that of `root_rank` and return it."""
    synchronize(broadcast_async_(tensor, root_rank, name, process_set))
    return tensor


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Return the tensor of `root_rank`, to which the mean of all ranks' gradients flows back."""
    full = name_for("broadcast", name, process_set)

    def backward(grads: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        own_name = f"{full}.grad"
        return on_host(lambda g: [arrays.broadcast_gradient(g[0], root_rank, process_set, own_name)], grads)

    return differentiable(
        lambda given: synchronize(_broadcast(given[0], root_rank, full, process_set)), backward, [tensor]
    )[0]


def alltoall_async(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> TorchHandle:
    """Begin to send `splits[i]` rows of `tensor` to rank i of the set (default: equal parts).

    `synchronize` returns the rows received, in rank order, and with `splits` also how many came from each rank.
    """
    handle = _torch_alltoall(tensor, _torch_split_numbers(splits), name_for("alltoall", name, process_set), process_set)
    return handle if splits is not None else first_of_torch_handle(handle)


def alltoall(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return what `alltoall_async` promises; gradients flow back the way that the rows came."""
    full = name_for("alltoall", name, process_set)
    counts: list[int] = []  # of the rows received

    def forward(given: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        output, received = synchronize(_torch_alltoall(given[0], _torch_split_numbers(splits), full, process_set))
        counts[:] = received.tolist()
        return output, received

    def backward(grads: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return on_host(lambda g: arrays.alltoall(g[0], counts, process_set, f"{full}.grad")[:1], grads[:1])

    output, received = differentiable(forward, backward, [tensor])
    return output if splits is None else (output, received)


def join(device: int = -1) -> int:
    """Say that this rank has no more data, and wait until all have said so; return the last rank to join.

    Meanwhile it contributes zeros to what the others sum or average. `device`: accepted for Horovod's sake; zeros
    are made in host memory. A HostOptimizer needs as many steps on every rank: MismatchError where that is not so.
    """
    return queues.join_after_updates()


def _torch_alltoall(
    tensor: torch.Tensor, splits: tuple[float, ...] | None, name: str, process_set: ProcessSet
) -> TorchHandle:
    def finish(result: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        return to_tensor(result[0], tensor.device), to_tensor(result[1])

    check_tensors([tensor])
    error = request_splits_error(tuple(tensor.shape), splits, members(process_set))
    cut = None if splits is None or error else tuple(int(rows) for rows in splits)
    request = NamedRequest(CollectiveKind.ALLTOALL, name, splits=cut)
    return submit_torch_request(request, [tensor], process_set, finish, error)


def _torch_split_numbers(splits: Any) -> tuple[float, ...] | None:
    if splits is None:
        return None
    return tuple(splits.tolist() if isinstance(splits, torch.Tensor) else splits)


def _torch_allgather(tensors: Sequence[torch.Tensor], name: str, process_set: ProcessSet) -> TorchHandle:
    check_tensors(tensors)
    error = scalar_error([tensor.shape for tensor in tensors])
    return submit_torch_request(NamedRequest(CollectiveKind.ALLGATHER, name), tensors, process_set, None, error)


def _torch_allgathered(tensors: Sequence[torch.Tensor], name: str, process_set: ProcessSet) -> list[torch.Tensor]:
    """Return `tensors` gathered, with gradients."""
    check_tensors(tensors)
    rows = [len(tensor) if tensor.dim() else 0 for tensor in tensors]

    def backward(grads: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return on_host(lambda given: arrays.allgather_gradient(given, rows, process_set, f"{name}.grad"), grads)

    return differentiable(lambda given: synchronize(_torch_allgather(given, name, process_set)), backward, tensors)


def _broadcast(
    tensor: torch.Tensor, root_rank: int, name: str, process_set: ProcessSet, finish: Finish | None = None
) -> TorchHandle:
    return submit_torch_request(
        NamedRequest(CollectiveKind.BROADCAST, name, root=int(root_rank)), [tensor], process_set, finish
    )
