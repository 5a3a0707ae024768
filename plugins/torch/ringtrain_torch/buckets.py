"""Buckets: groups of gradients that are reduced together, and the memory in which they are reduced."""

import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np
import torch

from ringtrain.adapter import Array, dtype_of
from ringtrain_torch.bridge import NAMES, to_tensor

# A parameter: torch.nn.Parameter, which has no usable stubs.
Param = Any

# Every exchange and every segment of it costs Python time; decision 38 has a sweep. Even a small model is cut, so that
# the first gradients are sent while the backward pass computes the last ones.
_MOST_BYTES: Final = 25 << 20
_LEAST_BYTES: Final = 1 << 20
_BUCKETS: Final = 4


def cut_buckets(names: Mapping[Param, str]) -> list[list[Param]]:
    """Cut parameters into buckets of one dtype and device, of a quarter of all bytes, at least 1 and at most 25 MiB.

    The cut depends only on names, shapes and types, so ranks whose optimizers have the parameters in another order cut
    equally. The last name is first, as in a backward pass.
    """
    share = sum(param.nbytes for param in names) // _BUCKETS
    return cut_at(names, min(max(share, _LEAST_BYTES), _MOST_BYTES))


def cut_at(names: Mapping[Param, str], bucket_bytes: int) -> list[list[Param]]:
    """Cut parameters into buckets of at least `bucket_bytes`, except the last bucket of each dtype and device."""
    buckets: list[list[Param]] = []
    filling: dict[tuple[Any, str], list[Param]] = {}
    for param in sorted(names, key=lambda param: _natural_parameter_name(names[param]), reverse=True):
        kind = param.dtype, param.device.type
        bucket = filling.setdefault(kind, [])
        bucket.append(param)
        if sum(member.nbytes for member in bucket) >= bucket_bytes:
            buckets.append(filling.pop(kind))
    return [*buckets, *filling.values()]


def _natural_parameter_name(name: str) -> list[Any]:
    """Return a sort key of a parameter's name that puts layer 10 after layer 9."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


@dataclass(frozen=True, eq=False)
class TorchBucketPlace:
    """Memory in which the gradients of a bucket are reduced.

    `flat`: all gradients, one after the other. `bounds`: offset of each gradient, and the end. `held`: for each
    gradient, whether it is a view of this memory, so that the result needs no copy. `memory`: owner of `flat`, so that
    gradients can become views of it.
    """

    flat: Array
    bounds: tuple[int, ...]
    held: tuple[bool, ...]
    memory: "TorchBucketMemory | None" = None

    def store(self, grads: Sequence[torch.Tensor]) -> None:
        """Copy the reduced values back to the gradients `grads`."""
        for index, grad in enumerate(grads):
            if self.held[index]:
                continue
            if self.memory is not None and _has_no_view(grad):
                grad.data = self.memory.view(index, grad.shape)
            else:
                with torch.no_grad():
                    grad.copy_(to_tensor(self.flat[slice(*self.bounds[index : index + 2])]).view(grad.shape))


class TorchBucketMemory:
    """Flat array for the gradients of a bucket. The gradients become views of it, so they are not copied before the
    reduction.

    The array is reused in each step. If another object still has a view of it, such as a gradient of an earlier step, a
    new array is allocated, so that the old values do not change.
    """

    def __init__(self) -> None:
        self._flat: Array = np.empty(0, np.uint8)
        self._bounds: tuple[int, ...] = ()
        self._views: list[Callable[[], Array | None]] = []

    def place(self, grads: Sequence[torch.Tensor], untouched: bool) -> TorchBucketPlace | None:
        """Return the memory in which `grads` are reduced; None unless all are contiguous tensors in host memory.

        `untouched`: whether the gradients must not change until `TorchBucketPlace.store`.
        """
        if not all(_is_flat(grad) for grad in grads):
            return None
        dtype, bounds = dtype_of(NAMES[grads[0].dtype]), tuple(accumulate((grad.numel() for grad in grads), initial=0))
        if bounds != self._bounds or dtype != self._flat.dtype:
            self._renew(dtype, bounds)
        held = self._held(grads)
        if any(view() is not None for view, own in zip(self._views, held, strict=True) if not own):
            self._renew(dtype, bounds)
            held = self._held(grads)
        if untouched and any(held):
            return TorchBucketPlace(np.empty_like(self._flat), bounds, (False,) * len(held))
        return TorchBucketPlace(self._flat, bounds, held, self)

    def view(self, index: int, shape: Any) -> torch.Tensor:
        """Return the memory of gradient `index` as a tensor. It is not reused while the tensor exists."""
        part = self._flat[slice(*self._bounds[index : index + 2])]
        raw = part.view("int16") if part.dtype.name == "bfloat16" else part
        self._views[index] = weakref.ref(raw)  # torch retains `raw` as long as a tensor uses its memory
        tensor = torch.from_numpy(raw)
        return (tensor.view(torch.bfloat16) if raw.dtype != part.dtype else tensor).view(shape)

    def _held(self, grads: Sequence[torch.Tensor]) -> tuple[bool, ...]:
        start, width = self._flat.ctypes.data, self._flat.itemsize
        return tuple(
            grad.data_ptr() == start + at * width or not grad.numel()
            for grad, at in zip(grads, self._bounds, strict=False)
        )

    def _renew(self, dtype: Any, bounds: tuple[int, ...]) -> None:
        self._flat, self._bounds = np.empty(bounds[-1], dtype), bounds
        self._views = [lambda: None for _ in pairwise(bounds)]


def _is_flat(grad: torch.Tensor) -> bool:
    return (
        grad.device.type == "cpu"
        and grad.layout is torch.strided
        and grad.is_contiguous()
        and not grad.requires_grad
        and grad.dtype in NAMES
    )


def _has_no_view(grad: torch.Tensor) -> bool:
    """Return whether no other tensor is known to share the memory of `grad`, so that the gradient may be stored
    elsewhere."""
    count = getattr(torch._C, "_storage_Use_Count", None)
    storage = grad.untyped_storage()
    return count is not None and count(storage._cdata) <= 2  # references of the tensor and of `storage`
