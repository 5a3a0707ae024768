"""Fast path for the most frequent request of a training loop: a collective on a single tensor in host memory.

Packing and unpacking run once for all tensors of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch

from ringtrain.adapter import Array
from ringtrain.adapter.devices import Communicator, FusedRequestBatch, SubmittedTensors
from ringtrain_torch.bridge import NAMES, as_array, to_tensor

# A subclass may override the operations that are used here.
_PLAIN: Final = frozenset({torch.Tensor, torch.nn.Parameter})


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether `tensor` is contiguous, in host memory, and of a dtype that can be sent."""
    return (
        type(tensor) in _PLAIN
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and tensor.dtype in NAMES
    )


class TorchHostTensor:
    """Tensor in host memory to reduce, in place or into a new one. It must not change until the reduction is done."""

    __slots__ = ("array", "in_place", "tensor")

    def __init__(self, tensor: torch.Tensor, in_place: bool) -> None:
        self.tensor = tensor
        # This array continues to refer to this memory even if `tensor.data` changes. A detached tensor would, too, but
        # creating one releases the interpreter lock, and the queue's thread would begin with half a step.
        self.array = as_array(tensor.detach() if tensor.requires_grad else tensor)
        self.in_place = in_place

    def __call__(self) -> Sequence[Array]:
        return [self.array]

    def finish(self, result: list[Any]) -> torch.Tensor:
        """Return the reduced tensor; with `in_place`, the submitted tensor with the values of `result`."""
        (reduced,) = result
        if not self.in_place:
            return to_tensor(reduced)
        if reduced is not self.tensor:
            with torch.no_grad():
                self.tensor.copy_(to_tensor(reduced))
        return self.tensor

    def carry_out(
        self, communicator: Communicator, batch: FusedRequestBatch, tensors: Sequence[SubmittedTensors]
    ) -> list[list[Any]] | None:
        if not batch.bounds:
            return None
        given = [one for one in tensors if isinstance(one, TorchHostTensor)]
        packed = np.concatenate([one.array.reshape(-1) for one in given])
        parts = _cut_tensors(batch.reduce_packed(communicator, packed), batch, self.tensor.dtype)
        _write_torch_tensors(given, parts)
        return [[part] for part in parts]


def _cut_tensors(reduced: Array, batch: FusedRequestBatch, dtype: torch.dtype) -> list[torch.Tensor]:
    """Split `reduced` into a separate tensor for each entry: views of one tensor would share their version counter."""
    raw = reduced.view("int16") if dtype is torch.bfloat16 else reduced
    shapes = [entry.any_request.shapes[0] for entry in batch.entries]
    cuts = zip(pairwise(batch.bounds), shapes, strict=True)
    parts = [torch.from_numpy(raw[start:stop].reshape(shape)) for (start, stop), shape in cuts]
    return [part.view(dtype) for part in parts] if dtype is torch.bfloat16 else parts


def _write_torch_tensors(given: Sequence[TorchHostTensor], parts: list[torch.Tensor]) -> None:
    """Copy the results of in-place reductions from `parts` to the submitted tensors `given`.

    Then each of these submitted tensors replaces its result in `parts`.
    """
    indices = [index for index, one in enumerate(given) if one.in_place]
    if indices:
        with torch.no_grad():
            torch._foreach_copy_([given[index].tensor for index in indices], [parts[index] for index in indices])
    for index in indices:
        parts[index] = given[index].tensor
