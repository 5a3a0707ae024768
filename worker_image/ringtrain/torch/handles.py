"""Submit tensors to the named queue, and what an asynchronous collective returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

import torch

from ringtrain.collectives.tensors import Array
from ringtrain.negotiation.queue import Finish, Submission
from ringtrain.negotiation.queues import queue_of
from ringtrain.negotiation.request import Request
from ringtrain.process_groups.process_sets import ProcessSet
from ringtrain.torch.bridge import name_of, to_arrays, to_tensors

# Many parameters are small: those of a layer or two together make as much as one exchange needs to be worth it.
_GATHERED_BYTES: Final = 1 << 20


@dataclass(frozen=True, eq=False)
class TorchHandle:
    """A collective under way; pass it to `poll()` and `synchronize()`. `after`: the last touch, by whoever
    waits.
    """

    future: Future[Any]
    after: Callable[[Any], Any] = lambda result: result


def submit(
    request: Request,
    tensors: Sequence[torch.Tensor],
    process_set: ProcessSet,
    finish: Finish | None = None,
    error: str = "",
) -> TorchHandle:
    """Submit `tensors` as `request`, whose dtypes, shapes and device are filled in here.

    `finish`: what the queue makes of the results (default: tensors on the device of their counterparts). `error`:
    what is wrong with this rank's arguments; it then fails on every rank rather than leave them waiting.
    """
    submission = _submission(request, tensors, finish, error)
    queue_of(process_set).submit_all([submission])
    return TorchHandle(submission.future)


class Gathered:
    """Submissions that are handed to the queue of `process_set` some at a time: each time costs it a wake-up."""

    def __init__(self, process_set: ProcessSet) -> None:
        self._process_set = process_set
        self._submissions: list[Submission] = []
        self._bytes = 0

    def add(self, request: Request, tensors: Sequence[torch.Tensor]) -> TorchHandle:
        """As `submit`, at the latest with `submit()` of this object."""
        submission = _submission(request, tensors, None, "")
        self._submissions.append(submission)
        self._bytes += sum(tensor.nbytes for tensor in tensors)
        if self._bytes >= _GATHERED_BYTES:
            self.submit()
        return TorchHandle(submission.future)

    def submit(self) -> None:
        """Submit what was gathered."""
        submissions = self._submissions
        if submissions:
            self.forget()
            queue_of(self._process_set).submit_all(submissions)

    def forget(self) -> None:
        """Submit none of it."""
        self._submissions, self._bytes = [], 0


def _submission(
    request: Request, tensors: Sequence[torch.Tensor], finish: Finish | None, error: str
) -> Submission:
    described = Request(  # replace() takes twice as long
        kind=request.kind,
        name=request.name,
        dtypes=tuple(name_of(tensor) for tensor in tensors),
        shapes=tuple(tuple(tensor.shape) for tensor in tensors),
        op=request.op,
        root=request.root,
        prescale=request.prescale,
        postscale=request.postscale,
        splits=request.splits,
        device=tensors[0].device.type if tensors else "cpu",
        error=error or _device_error(tensors),
    )
    # What is wrong fails on every rank before anyone looks at the data.
    arrays = tuple if described.error else to_arrays(tensors)
    return Submission(described, arrays, finish or (lambda result: to_tensors(result, tensors)))


def first(handle: TorchHandle) -> TorchHandle:
    """Return the same collective as one with a single result."""
    return TorchHandle(handle.future, itemgetter(0))


def on_host(
    function: Callable[[Sequence[Array]], Sequence[Array]],
    tensors: Sequence[torch.Tensor],
    more: Sequence[torch.Tensor] = (),
) -> list[torch.Tensor]:
    """Return what `function` makes of the arrays of `tensors` and `more`: a tensor for each of `tensors`."""
    return to_tensors(function(to_arrays([*tensors, *more])()), tensors)


def differentiable(
    forward: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]],
    backward: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]],
    tensors: Sequence[torch.Tensor],
) -> list[torch.Tensor]:
    """Return `forward(tensors)`; `backward` makes the gradients of `tensors` from those of the results."""
    return list(_Differentiable.apply(forward, backward, *tensors))


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, forward: Any, backward: Any, *tensors: torch.Tensor) -> Any:
        ctx.gradients = backward
        return tuple(forward(tensors))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return (None, None, *ctx.gradients(grads))


def poll(handle: TorchHandle) -> bool:
    """Return whether `synchronize(handle)` would return at once."""
    return handle.future.done()


def synchronize(handle: TorchHandle) -> Any:
    """Wait for the collective and return its result: a tensor, or several where it has several.

    Raises MismatchError where ranks disagree, PeerLost where one is gone; both are HorovodInternalError.
    """
    return handle.after(handle.future.result())


def _device_error(tensors: Sequence[torch.Tensor]) -> str:
    kinds = sorted({str(tensor.device) for tensor in tensors})
    if len(kinds) > 1:
        return f"its tensors are on {' and '.join(kinds)}; expected one device"
    return (
        "its tensors are on the meta device, which holds no data; expected a real one" if kinds == ["meta"] else ""
    )
