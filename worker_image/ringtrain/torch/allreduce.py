"""Allreduce: plain, grouped, in place, asynchronous, and with gradients."""

from collections.abc import Sequence
from typing import Any

import torch

from ringtrain.compression.casts import run_compressed
from ringtrain.negotiation.queue import Finish
from ringtrain.negotiation.queues import name_for
from ringtrain.negotiation.request import CollectiveKind, Request
from ringtrain.process_groups.process_sets import ProcessSet, global_process_set, members
from ringtrain.reduction.ops import ReduceOp, chosen_op
from ringtrain.torch.bridge import to_tensor, to_tensors
from ringtrain.torch.compression import Compression, Compressor
from ringtrain.torch.gradients import allreduce_gradients
from ringtrain.torch.handles import TorchHandle, submit, synchronize


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> TorchHandle:
    """Begin to reduce `tensor` over the ranks of `process_set`; `synchronize` returns a new tensor.

    `name`: pairs this call with the others' (default: a counter). `op`: Average (default), Sum, Adasum, Min, Max
    or Product. `average`: deprecated form of `op`. Factors multiply before and after the reduction.
    """
    request = _request(name, op, average, (prescale_factor, postscale_factor), process_set)
    return _submit([tensor], request, process_set, lambda result: to_tensors(result, [tensor])[0])


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> TorchHandle:
    """Like `allreduce_async`, with the result written into `tensor`, which is also what `synchronize` returns."""
    request = _request(name, op, average, (prescale_factor, postscale_factor), process_set)
    return _submit([tensor], request, process_set, lambda result: _write([tensor], result)[0])


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce `tensor` in place and return it. Arguments as of `allreduce_async`."""
    handle = allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set)
    reduced: torch.Tensor = synchronize(handle)
    return reduced


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Return `tensor` reduced over the ranks of `process_set`; gradients flow through. Arguments as of
    `allreduce_async`; `compression` makes the tensor smaller on its way."""
    request = _request(name, op, average, (prescale_factor, postscale_factor), process_set)
    return _differentiable([tensor], request, process_set, compression)[0]


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> TorchHandle:
    """Begin to reduce all of `tensors` as one collective; `synchronize` returns a list. Arguments as of
    `allreduce_async`."""
    request = _request(name, op, average, (prescale_factor, postscale_factor), process_set, "grouped_allreduce")
    return _submit(tensors, request, process_set, lambda result: to_tensors(result, tensors))


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> TorchHandle:
    """Like `grouped_allreduce_async`, in place."""
    request = _request(name, op, average, (prescale_factor, postscale_factor), process_set, "grouped_allreduce")
    return _submit(tensors, request, process_set, lambda result: _write(tensors, result))


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduce all of `tensors` in place as one collective and return them."""
    factors = (prescale_factor, postscale_factor)
    return list(synchronize(grouped_allreduce_async_(tensors, average, name, op, *factors, process_set)))


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Return all of `tensors`, reduced as one collective; gradients flow through."""
    request = _request(name, op, average, (prescale_factor, postscale_factor), process_set, "grouped_allreduce")
    return _differentiable(tensors, request, process_set, compression)


def _differentiable(
    tensors: Sequence[torch.Tensor], request: Request, process_set: ProcessSet, compression: type[Compressor]
) -> list[torch.Tensor]:
    return run_compressed(compression, tensors, lambda small: _Allreduce.apply(request, process_set, *small))


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, request: Request, process_set: ProcessSet, *tensors: torch.Tensor) -> Any:
        outputs = synchronize(_submit(tensors, request, process_set, lambda result: to_tensors(result, tensors)))
        ctx.request, ctx.process_set = request, process_set
        # Not save_for_backward, which lets go of them with the first backward pass: the outputs of a group may be
        # taken back one by one. Detached, so that no output holds itself.
        ctx.kept = [_kept(t) for t in (*tensors, *outputs)] if request.op in ("Min", "Max", "Product") else []
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        kept = [_unchanged(tensor, version) for tensor, version in ctx.kept]
        pairs = list(zip(kept[: len(grads)], kept[len(grads) :], strict=True))
        return (None, None, *allreduce_gradients(ctx.request, ctx.process_set, grads, pairs))


def _kept(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    return tensor.detach(), tensor._version


def _unchanged(tensor: torch.Tensor, version: int) -> torch.Tensor:
    if tensor._version != version:
        raise RuntimeError(
            "an input or output of an allreduce with Min, Max or Product was overwritten between forward and "
            "backward, and its gradient needs both; pass a clone() of it, or overwrite it later"
        )
    return tensor


def _request(
    name: str | None,
    op: Any,
    average: bool | None,
    factors: tuple[float, float],
    process_set: ProcessSet,
    series: str = "allreduce",
) -> Request:
    chosen: ReduceOp = chosen_op(op, average)
    return Request(
        CollectiveKind.ALLREDUCE,
        name_for(series, name, process_set),
        op=chosen.value,
        prescale=factors[0],
        postscale=factors[1],
    )


def _submit(
    tensors: Sequence[torch.Tensor], request: Request, process_set: ProcessSet, finish: Finish
) -> TorchHandle:
    error = ""
    size = members(process_set)
    if request.op == "Adasum" and size & (size - 1):
        error = f"Adasum combines ranks in pairs, and the process set has {size}; expected a power of two"
    return submit(request, tensors, process_set, finish, error)


def _write(tensors: Sequence[torch.Tensor], result: Sequence[Any]) -> list[torch.Tensor]:
    with torch.no_grad():
        for tensor, array in zip(tensors, result, strict=True):
            tensor.detach().copy_(to_tensor(array))
    return list(tensors)
