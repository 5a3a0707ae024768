"""Reducescatter: each rank keeps its own rows of the reduced tensor."""

from collections.abc import Sequence
from typing import Any

import torch

from ringtrain.compression.casts import run_compressed
from ringtrain.negotiation.queues import name_for
from ringtrain.negotiation.request import CollectiveKind, Request
from ringtrain.negotiation.splits import scalar_error
from ringtrain.process_groups.process_sets import ProcessSet, global_process_set, members
from ringtrain.reduction.ops import Average, chosen_op, only_sums
from ringtrain.torch.bridge import to_tensors
from ringtrain.torch.compression import Compression, Compressor
from ringtrain.torch.handles import TorchHandle, submit, synchronize


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: Any = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> TorchHandle:
    """Begin to reduce `tensor`; `synchronize` returns this rank's rows, where the first ranks have one more if the
    rows do not divide. `op`: Average or Sum."""
    request = _request("reducescatter", name, op, process_set, (prescale_factor, postscale_factor))
    return _submit([tensor], request, process_set, single=True)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: Any = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Return this rank's rows of the reduced `tensor`; gradients flow through.

    The gradient is every rank's, gathered; for Sum it is multiplied by the number of ranks, as Horovod does.
    """
    request = _request("reducescatter", name, op, process_set, (prescale_factor, postscale_factor))
    return _differentiable([tensor], request, process_set, compression)[0]


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: Any = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> TorchHandle:
    """Begin to reduce each of `tensors`, as one collective; `synchronize` returns a list of this rank's rows."""
    request = _request("grouped_reducescatter", name, op, process_set, (prescale_factor, postscale_factor))
    return _submit(tensors, request, process_set)


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: Any = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Return this rank's rows of each of `tensors`, reduced as one collective; gradients flow through."""
    request = _request("grouped_reducescatter", name, op, process_set, (prescale_factor, postscale_factor))
    return _differentiable(tensors, request, process_set, compression)


def _differentiable(
    tensors: Sequence[torch.Tensor], request: Request, process_set: ProcessSet, compression: type[Compressor]
) -> list[torch.Tensor]:
    return run_compressed(compression, tensors, lambda small: _Reducescatter.apply(request, process_set, *small))


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, request: Request, process_set: ProcessSet, *tensors: torch.Tensor) -> Any:
        ctx.request, ctx.process_set = request, process_set
        return tuple(synchronize(_submit(tensors, request, process_set)))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        request = Request(CollectiveKind.ALLGATHER, f"{ctx.request.name}.grad")
        gathered = synchronize(submit(request, grads, ctx.process_set, lambda result: to_tensors(result, grads)))
        factor = ctx.request.prescale * ctx.request.postscale
        factor *= members(ctx.process_set) if ctx.request.op == "Sum" else 1
        return (None, None, *(grad * factor for grad in gathered))


def _request(
    series: str, name: str | None, op: Any, process_set: ProcessSet, factors: tuple[float, float]
) -> Request:
    chosen = only_sums(chosen_op(op), series)
    full = name_for(series, name, process_set)
    return Request(CollectiveKind.REDUCESCATTER, full, op=chosen.value, prescale=factors[0], postscale=factors[1])


def _submit(
    tensors: Sequence[torch.Tensor], request: Request, process_set: ProcessSet, single: bool = False
) -> TorchHandle:
    def finish(result: Sequence[Any]) -> Any:
        rows = to_tensors(result, tensors)
        return rows[0] if single else rows

    return submit(request, tensors, process_set, finish, scalar_error([tensor.shape for tensor in tensors]))
