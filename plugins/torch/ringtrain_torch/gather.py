"""Allgather, broadcast and alltoall, and join for ranks whose data ends early."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ringtrain import ProcessSet, global_process_set
from ringtrain.adapter import NamedCollective, allgather_gradient, broadcast_gradient, join_after_updates, queue_of
from ringtrain_torch.bridge import to_tensor
from ringtrain_torch.handles import (
    TorchHandle,
    check_tensors,
    differentiable,
    on_host,
    single_result_handle,
    submit_tensors,
    synchronize,
)


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> TorchHandle:
    """Begin to gather the rows of every rank's `tensor`; `synchronize` returns a new tensor with the rows of all ranks.

    The number of rows may differ between ranks; dtype and the other dimensions are the same on all ranks.
    """
    return single_result_handle(submit_tensors(NamedCollective.allgather(process_set, name), [tensor]))


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Return every rank's rows in rank order. The gradient of this rank's rows is the mean of all ranks' gradients for
    them."""
    return _torch_allgathered([tensor], NamedCollective.allgather(process_set, name))[0]


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> TorchHandle:
    """Begin to gather the rows of each of `tensors`, as one collective; `synchronize` returns a list of tensors."""
    return submit_tensors(NamedCollective.allgather(process_set, name, "grouped_allgather"), tensors)


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """Return the rows of all ranks for each of `tensors`, gathered as one collective. Differentiable."""
    return _torch_allgathered(tensors, NamedCollective.allgather(process_set, name, "grouped_allgather"))


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> TorchHandle:
    """Begin to send the tensor of `root_rank` (a rank of the world) to all; `synchronize` returns a new tensor.

    `tensor`: the same shape and dtype on all ranks; only the values on `root_rank` matter.
    """
    return single_result_handle(submit_tensors(NamedCollective.broadcast(root_rank, process_set, name), [tensor]))


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> TorchHandle:
    """Begin to overwrite `tensor` with the tensor of `root_rank`, like `broadcast_async`; `synchronize` returns
    `tensor`."""

    def finish(result: Any) -> torch.Tensor:
        with torch.no_grad():
            return tensor.detach().copy_(to_tensor(result[0])) if queue_of(process_set).rank != root_rank else tensor

    return submit_tensors(NamedCollective.broadcast(root_rank, process_set, name), [tensor], finish)


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Overwrite `tensor` with the tensor of `root_rank` and return it."""
    synchronize(broadcast_async_(tensor, root_rank, name, process_set))
    return tensor


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Return the tensor of `root_rank`. Autograd sends the mean of all ranks' gradients back to `root_rank`."""
    collective = NamedCollective.broadcast(root_rank, process_set, name)

    def backward(grads: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        own_name = f"{collective.name}.grad"
        return on_host(lambda given: broadcast_gradient(given, root_rank, process_set, own_name), grads)

    return differentiable(lambda given: synchronize(submit_tensors(collective, given)), backward, [tensor])[0]


def alltoall_async(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> TorchHandle:
    """Begin to send `splits[i]` rows of `tensor` to rank i of the set (default: equal parts).

    `synchronize` returns the received rows, in rank order, and with `splits` also the number of rows from each rank.
    """
    handle = _torch_alltoall(tensor, NamedCollective.alltoall(_torch_split_numbers(splits), process_set, name))
    return handle if splits is not None else single_result_handle(handle)


def alltoall(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows of `tensor` as `alltoall_async` does, and return the result. Autograd sends gradients back to the ranks
    that sent the rows."""
    collective = NamedCollective.alltoall(_torch_split_numbers(splits), process_set, name)
    counts: list[int] = []  # of the received rows

    def forward(given: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        output, received = synchronize(_torch_alltoall(given[0], collective))
        counts[:] = received.tolist()
        return output, received

    def backward(grads: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        back = NamedCollective.alltoall(counts, process_set, f"{collective.name}.grad")
        return on_host(lambda given: back.run(given)[:1], grads[:1])

    output, received = differentiable(forward, backward, [tensor])
    return output if splits is None else (output, received)


def join(device: int = -1) -> int:
    """Announce that this rank has no more data, and wait until all ranks have done so; return the last rank to join.

    Meanwhile this rank contributes zeros to the others' sums and averages. `device`: accepted for compatibility with
    Horovod; zeros are created in host memory. A HostOptimizer requires equally many steps on every rank; otherwise join
    raises MismatchError.
    """
    return join_after_updates()


def _torch_alltoall(tensor: torch.Tensor, collective: NamedCollective) -> TorchHandle:
    def finish(result: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        return to_tensor(result[0], tensor.device), to_tensor(result[1])

    return submit_tensors(collective, [tensor], finish)


def _torch_split_numbers(splits: Any) -> tuple[float, ...] | None:
    if splits is None:
        return None
    return tuple(splits.tolist() if isinstance(splits, torch.Tensor) else splits)


def _torch_allgathered(tensors: Sequence[torch.Tensor], collective: NamedCollective) -> list[torch.Tensor]:
    """Return the rows of all ranks for each of `tensors`. Autograd sends gradients back to the ranks of the rows."""
    check_tensors(tensors)
    rows = [len(tensor) if tensor.dim() else 0 for tensor in tensors]

    def backward(grads: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        own_name = f"{collective.name}.grad"
        return on_host(lambda given: allgather_gradient(given, rows, collective.process_set, own_name), grads)

    return differentiable(lambda given: synchronize(submit_tensors(collective, given)), backward, tensors)
