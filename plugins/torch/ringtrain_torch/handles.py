"""Submission of tensors to the queue of named collectives, and handles of asynchronous collectives."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from ringtrain import ProcessSet
from ringtrain.adapter import Array, NamedCollective, NamedSubmission, queue_of
from ringtrain.errors import ConfigurationError, kind_of
from ringtrain_torch.bridge import name_of, to_arrays, to_tensors
from ringtrain_torch.devices import TorchDeviceTensors, backend_of, device_of, source_of
from ringtrain_torch.host_tensor import TorchHostTensor

# Converts the result of the queue.
Finish = Callable[[list[Any]], Any]


@dataclass(slots=True, eq=False)  # not frozen: that would take three times as long to create
class TorchHandle:
    """Handle of a collective in progress, for `poll()` and `synchronize()`. `after`: converts the result in the waiting
    thread."""

    future: NamedSubmission
    after: Callable[[Any], Any] = lambda result: result


def submit_tensors(
    collective: NamedCollective, tensors: Sequence[torch.Tensor], finish: Finish | None = None
) -> TorchHandle:
    """Submit `tensors` to the queue. `finish`: converts the collective's result (default: to tensors on the original
    devices)."""
    check_tensors(tensors)
    return TorchHandle(queue_of(collective.process_set).submit_prepared(_torch_submission(collective, tensors, finish)))


def submit_again(asked: Hashable, tensor: torch.Tensor, process_set: ProcessSet, in_place: bool) -> TorchHandle | None:
    """Submit `tensor` with the request that `remembered_torch_request` stored for `asked`; return None if there is
    none.

    `asked`: all values that determine the request. `in_place`: whether `tensor` is overwritten with the result. A
    repeated step thus skips validation and description.
    """
    queue = queue_of(process_set)
    request = queue.remembered.get(asked)
    if request is None:
        return None
    host = TorchHostTensor(tensor, in_place)
    return TorchHandle(queue.submit_prepared(NamedSubmission(request, host, host.finish)))


def remembered_torch_request(asked: Hashable, handle: TorchHandle, process_set: ProcessSet) -> TorchHandle:
    """Store the request of `handle` for `submit_again` if it is valid, on the CPU, with `asked`; return `handle`."""
    request = handle.future.request
    if asked is not None and request.device == "cpu" and not request.error:
        queue_of(process_set).remember(asked, request)
    return handle


def submit_bucket(
    collective: NamedCollective,
    tensors: Sequence[torch.Tensor],
    target: Array | None,
    finish: Finish,
) -> TorchHandle:
    """Submit a bucket, whose tensors are reduced into `target`.

    `finish` receives the reduced array: `target`, or a new array if `target` is None.
    """
    submission = _torch_submission(collective, tensors, finish)
    if isinstance(submission.arrays, TorchDeviceTensors):
        submission.arrays.target = target
    submission.target = target
    return TorchHandle(queue_of(collective.process_set).submit_prepared(submission))


def _torch_submission(
    collective: NamedCollective, tensors: Sequence[torch.Tensor], finish: Finish | None
) -> NamedSubmission:
    backend = backend_of(tensors, collective.process_set)
    dtypes, shapes = tuple([name_of(tensor) for tensor in tensors]), tuple([tensor.shape for tensor in tensors])
    request = collective.request_of(dtypes, shapes, device_of(tensors, backend), _device_error(tensors))
    if request.error:  # an invalid request fails on every rank before any data is read
        return NamedSubmission(request, tuple, finish or list)
    arrays = source_of(tensors, collective.process_set, backend)
    return NamedSubmission(request, arrays, finish or (lambda result: to_tensors(result, tensors)))


def single_result_handle(handle: TorchHandle) -> TorchHandle:
    """Return a handle of the same collective whose result is a tensor instead of a list of one tensor."""
    return TorchHandle(handle.future, itemgetter(0))


def on_host(
    function: Callable[[Sequence[Array]], Sequence[Array]],
    tensors: Sequence[torch.Tensor],
    more: Sequence[torch.Tensor] = (),
) -> list[torch.Tensor]:
    """Apply `function` to `tensors` and `more` as host arrays; return its results as tensors like `tensors`."""
    return to_tensors(function(to_arrays([*tensors, *more])()), tensors)


def check_tensors(tensors: Sequence[Any]) -> None:
    """Raise ConfigurationError for a value that is not a tensor."""
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            found = "None" if tensor is None else kind_of(tensor)
            raise ConfigurationError(
                f"a collective was given {found}; expected a torch.Tensor: broadcast_object and allgather_object send "
                "other values"
            )


def differentiable(
    forward: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]],
    backward: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]],
    tensors: Sequence[torch.Tensor],
) -> list[torch.Tensor]:
    """Return `forward(tensors)`. `backward` computes the gradients of `tensors` from those of the results."""
    check_tensors(tensors)
    return list(_Differentiable.apply(forward, backward, *tensors))


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, forward: Any, backward: Any, *tensors: torch.Tensor) -> Any:
        ctx.gradients = backward
        return tuple(forward(tensors))

    @staticmethod
    @once_differentiable  # a second derivative would silently omit the part through here
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return (None, None, *ctx.gradients(grads))


def poll(handle: TorchHandle) -> bool:
    """Return whether `synchronize(handle)` would return at once."""
    return handle.future.done()


def synchronize(handle: TorchHandle) -> Any:
    """Wait for the collective and return its result: a tensor, or several (grouped, or alltoall with splits).

    Raises MismatchError if ranks disagree, PeerLost if one is lost; both are HorovodInternalError.
    """
    return handle.after(handle.future.result())


def _device_error(tensors: Sequence[torch.Tensor]) -> str:
    if len(tensors) == 1 and tensors[0].device.type == "cpu":
        return ""
    kinds = sorted({str(tensor.device) for tensor in tensors})
    if len(kinds) > 1:
        return f"its tensors are on {' and '.join(kinds)}; expected one device"
    return "its tensors are on the meta device, which has no data; expected a real one" if kinds == ["meta"] else ""
