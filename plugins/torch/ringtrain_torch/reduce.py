"""Allreduce and reducescatter of tensors: single or grouped, in place, asynchronous, and differentiable."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Final

import torch

from ringtrain import Average, ProcessSet, ReduceOp, global_process_set
from ringtrain.adapter import Array, NamedCollective, NamedReduction, allreduce_gradient, reducescatter_gradient
from ringtrain.compression import run_compressed
from ringtrain_torch.bridge import to_tensor
from ringtrain_torch.compression import Compression, Compressor
from ringtrain_torch.handles import (
    TorchHandle,
    differentiable,
    on_host,
    remembered_torch_request,
    single_result_handle,
    submit_again,
    submit_tensors,
    synchronize,
)
from ringtrain_torch.host_tensor import is_plain

_OPS: Final = (ReduceOp, type(None))


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

    `tensor`: dense, on any device, with the same shape and dtype on all ranks. `name`: pairs this call with the other
    ranks' calls (default: a counter). `op`: Average (default), Sum, Adasum, Min, Max or Product; averages of integers
    are rounded towards zero. `average`: deprecated form of `op`. `prescale_factor` multiplies before the reduction,
    `postscale_factor` after it. Raises ConfigurationError for wrong arguments; `synchronize` raises if ranks disagree.
    """
    asked = _request_key(tensor, average, name, op, prescale_factor, postscale_factor)
    if asked is not None and (again := submit_again(asked, tensor, process_set, in_place=False)) is not None:
        return again
    how = NamedReduction.of(op, average, prescale_factor, postscale_factor, process_set)
    begun = _allreduce([tensor], NamedCollective.allreduce(how, name))
    return single_result_handle(remembered_torch_request(asked, begun, process_set))


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> TorchHandle:
    """Begin to reduce `tensor` in place, like `allreduce_async`; `synchronize` returns `tensor`."""
    asked = _request_key(tensor, average, name, op, prescale_factor, postscale_factor)
    if asked is not None and (again := submit_again(asked, tensor, process_set, in_place=True)) is not None:
        return again
    how = NamedReduction.of(op, average, prescale_factor, postscale_factor, process_set)
    begun = _allreduce([tensor], NamedCollective.allreduce(how, name), in_place=True)
    return single_result_handle(remembered_torch_request(asked, begun, process_set))


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce `tensor` in place and return it. For arguments see `allreduce_async`."""
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
    """Return `tensor` reduced over the ranks of `process_set`. Differentiable. For arguments see `allreduce_async`;
    `compression` reduces the number of bytes sent."""
    how = NamedReduction.of(op, average, prescale_factor, postscale_factor, process_set)
    return _torch_allreduced([tensor], how, NamedCollective.allreduce(how, name), compression)[0]


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> TorchHandle:
    """Begin to reduce all of `tensors` as one collective; `synchronize` returns a list. For arguments see
    `allreduce_async`."""
    how = NamedReduction.of(op, average, prescale_factor, postscale_factor, process_set)
    return _allreduce(tensors, NamedCollective.allreduce(how, name, "grouped_allreduce"))


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> TorchHandle:
    """Begin to reduce all of `tensors` in place as one collective. For arguments see `allreduce_async`."""
    how = NamedReduction.of(op, average, prescale_factor, postscale_factor, process_set)
    return _allreduce(tensors, NamedCollective.allreduce(how, name, "grouped_allreduce"), in_place=True)


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduce all of `tensors` in place as one collective and return them. For arguments see `allreduce_async`."""
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
    """Return all of `tensors`, reduced as one collective. Differentiable. For arguments see `allreduce_async`."""
    how = NamedReduction.of(op, average, prescale_factor, postscale_factor, process_set)
    return _torch_allreduced(tensors, how, NamedCollective.allreduce(how, name, "grouped_allreduce"), compression)


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: Any = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> TorchHandle:
    """Begin to reduce `tensor`; `synchronize` returns this rank's rows. If the number of rows is not a multiple of the
    number of ranks, the first ranks get one more. `op`: Average or Sum."""
    how = NamedReduction.of_sums("reducescatter", op, prescale_factor, postscale_factor, process_set)
    return single_result_handle(submit_tensors(NamedCollective.reducescatter(how, name), [tensor]))


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: Any = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Return this rank's rows of the reduced `tensor`. Differentiable.

    The gradient is gathered from all ranks; for Sum it is multiplied by the number of ranks, as in Horovod.
    """
    how = NamedReduction.of_sums("reducescatter", op, prescale_factor, postscale_factor, process_set)
    return _torch_scattered([tensor], how, NamedCollective.reducescatter(how, name), compression)[0]


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: Any = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> TorchHandle:
    """Begin to reduce each of `tensors`, as one collective; `synchronize` returns a list of this rank's rows."""
    how = NamedReduction.of_sums("grouped_reducescatter", op, prescale_factor, postscale_factor, process_set)
    return submit_tensors(NamedCollective.reducescatter(how, name, "grouped_reducescatter"), tensors)


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: Any = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Return this rank's rows of each of `tensors`, reduced as one collective. Differentiable."""
    how = NamedReduction.of_sums("grouped_reducescatter", op, prescale_factor, postscale_factor, process_set)
    return _torch_scattered(
        tensors, how, NamedCollective.reducescatter(how, name, "grouped_reducescatter"), compression
    )


def _request_key(
    tensor: torch.Tensor, average: bool | None, name: str | None, op: Any, prescale: float, postscale: float
) -> Hashable:
    """Return the arguments that determine the request as a key for `submit_again`; None if `submit_again` does not
    support them."""
    if name is None or average is not None or type(op) not in _OPS or type(prescale) is not float:
        return None
    if type(postscale) is not float or not is_plain(tensor):
        return None
    return name, op, prescale, postscale, tensor.dtype, tensor.shape


def _allreduce(tensors: Sequence[torch.Tensor], collective: NamedCollective, in_place: bool = False) -> TorchHandle:
    def write(result: Sequence[Array]) -> list[torch.Tensor]:
        with torch.no_grad():
            for tensor, array in zip(tensors, result, strict=True):
                tensor.detach().copy_(to_tensor(array))
        return list(tensors)

    return submit_tensors(collective, tensors, write if in_place else None)


def _torch_allreduced(
    tensors: Sequence[torch.Tensor],
    how: NamedReduction,
    collective: NamedCollective,
    compression: type[Compressor],
) -> list[torch.Tensor]:
    """Return `tensors` reduced over ranks. Autograd computes gradients by `allreduce_gradient`."""
    # Inputs, then outputs, with their versions. Not save_for_backward, which frees them with the first backward pass:
    # gradients of a group's outputs may be computed one by one. Detached, so that no output references itself.
    kept: list[tuple[torch.Tensor, int]] = []

    def forward(given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        outputs: list[torch.Tensor] = synchronize(_allreduce(given, collective))
        if how.op in ("Min", "Max", "Product"):
            kept.extend((tensor.detach(), tensor._version) for tensor in (*given, *outputs))
        return outputs

    def backward(grads: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if any(tensor._version != version for tensor, version in kept):
            raise RuntimeError(
                "an input or output of an allreduce with Min, Max or Product was overwritten between forward and "
                "backward, but the gradient needs its values; pass a clone(), or overwrite the tensor after backward()"
            )
        count = len(grads)

        def gradient(given: Sequence[Array]) -> list[Array]:
            parts = given[:count], given[count : 2 * count], given[2 * count :]
            return allreduce_gradient(*parts, how, f"{collective.name}.grad")

        return on_host(gradient, grads, [tensor for tensor, _ in kept])

    return run_compressed(compression, tensors, lambda small: differentiable(forward, backward, small))


def _torch_scattered(
    tensors: Sequence[torch.Tensor],
    how: NamedReduction,
    collective: NamedCollective,
    compression: type[Compressor],
) -> list[torch.Tensor]:
    """Return this rank's rows of `tensors` reduced over ranks. Autograd gathers their gradients."""

    def forward(given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        rows: list[torch.Tensor] = synchronize(submit_tensors(collective, given))
        return rows

    def backward(grads: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return on_host(lambda given: reducescatter_gradient(given, how, f"{collective.name}.grad"), grads)

    return run_compressed(compression, tensors, lambda small: differentiable(forward, backward, small))
