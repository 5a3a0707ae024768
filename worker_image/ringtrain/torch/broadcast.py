"""Broadcast: one rank's tensor on every rank."""

from typing import Any

import torch

from ringtrain.negotiation.queue import Finish
from ringtrain.negotiation.queues import name_for, queue_of
from ringtrain.negotiation.request import CollectiveKind, Request
from ringtrain.process_groups.process_sets import ProcessSet, global_process_set
from ringtrain.torch.bridge import to_tensor
from ringtrain.torch.gradients import reduced
from ringtrain.torch.handles import TorchHandle, submit, synchronize


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> TorchHandle:
    """Begin to send the tensor of `root_rank` (a rank of the world) to all; `synchronize` returns a new tensor."""
    name = name_for("broadcast", name, process_set)
    return _submit(tensor, root_rank, name, process_set, lambda result: to_tensor(result[0], tensor.device))


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> TorchHandle:
    """Like `broadcast_async`, with the result written into `tensor`, which is also what `synchronize` returns."""

    def finish(result: Any) -> torch.Tensor:
        with torch.no_grad():
            return (
                tensor.detach().copy_(to_tensor(result[0])) if queue_of(process_set).rank != root_rank else tensor
            )

    return _submit(tensor, root_rank, name_for("broadcast", name, process_set), process_set, finish)


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
    result: torch.Tensor = _Broadcast.apply(
        tensor, root_rank, name_for("broadcast", name, process_set), process_set
    )
    return result


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: int, name: str, process_set: ProcessSet) -> Any:
        ctx.root_rank, ctx.name, ctx.process_set = root_rank, name, process_set
        finish: Finish = lambda result: to_tensor(result[0], tensor.device)  # noqa: E731
        return synchronize(_submit(tensor, root_rank, name, process_set, finish))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        request = Request(CollectiveKind.ALLREDUCE, f"{ctx.name}.grad", op="Average")
        (mean,) = reduced(grads, request, ctx.process_set)
        own = queue_of(ctx.process_set).rank
        return (mean if own == ctx.root_rank else torch.zeros_like(mean), None, None, None)


def _submit(
    tensor: torch.Tensor, root_rank: int, name: str, process_set: ProcessSet, finish: Finish
) -> TorchHandle:
    return submit(Request(CollectiveKind.BROADCAST, name, root=int(root_rank)), [tensor], process_set, finish)
