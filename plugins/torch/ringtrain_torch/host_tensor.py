"""A single tensor in host memory in a named collective: the usual request of a training loop, hundreds per step.

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
    """Return whether `tensor` is contiguous host memory of a type that can be sent."""
    return (
        type(tensor) in _PLAIN
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and tensor.dtype in NAMES
    )


class TorchHostTensor:
    """A plain tensor to reduce, in place or into a new one. It must not change until the reduction is done."""

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
        """Return the reduced tensor, from the result of `carry_out` or from the array of another implementation."""
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
    """Return each entry's part as a separate tensor: views of one tensor share their version counter, and are saved as
    a whole."""
    raw = reduced.view("int16") if dtype is torch.bfloat16 else reduced
    shapes = [entry.any_request.shapes[0] for entry in batch.entries]
    cuts = zip(pairwise(batch.bounds), shapes, strict=True)
    parts = [torch.from_numpy(raw[start:stop].reshape(shape)) for (start, stop), shape in cuts]
    return [part.view(dtype) for part in parts] if dtype is torch.bfloat16 else parts


def _write_torch_tensors(given: Sequence[TorchHostTensor], parts: list[torch.Tensor]) -> None:
    """Write the results of in-place reductions; the tensors replace the results in `parts`."""
    indices = [index for index, one in enumerate(given) if one.in_place]
    if indices:
        with torch.no_grad():
            torch._foreach_copy_([given[index].tensor for index in indices], [parts[index] for index in indices])
    for index in indices:
        parts[index] = given[index].tensor
