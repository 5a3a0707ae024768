"""Tell whether a tensor still holds what it held before, without a copy of it."""

from dataclasses import dataclass
from typing import Final

import torch

# As wide as the elements, so that any tensor can be looked at as one of these.
_INTEGERS: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Of a tensor with more than _SMALL elements one in so many is looked at, where a part is enough. A prime: no shape
# divides by it.
_SMALL: Final = 4096
_STRIDE: Final = 1021


@dataclass(frozen=True, eq=False)
class TorchFingerprint:
    """What a tensor was: which object, how often it had been written, and the sum of its bits.

    PyTorch does not count writes through `.data`, so the bits are looked at too: all of them (`whole`), 28 ms for
    100 MB on one core, or in a large tensor those of every 1021st element, which is enough to see that all of them
    were scaled or cleared.
    """

    tensor: torch.Tensor
    whole: bool
    version: int
    bits: torch.Tensor | None

    @classmethod
    def of(cls, tensor: torch.Tensor, whole: bool = True) -> "TorchFingerprint":
        return cls(tensor, whole, tensor._version, bits_of(tensor, whole))

    @classmethod
    def of_version(cls, tensor: torch.Tensor) -> "TorchFingerprint":
        """What is to be known of a tensor whose bits are about to change: they are not looked at."""
        return cls(tensor, False, tensor._version, None)

    def is_of(self, tensor: torch.Tensor | None) -> bool:
        """Whether `tensor` is that tensor, unchanged as far as was looked."""
        if tensor is not self.tensor or tensor._version != self.version:
            return False
        return self.bits is None or self.has_bits_of(tensor)

    def has_bits_of(self, tensor: torch.Tensor) -> bool:
        """Whether `tensor` is that tensor with the same bits, however often it or a view beside it was written."""
        return tensor is self.tensor and self.bits is not None and torch.equal(bits_of(tensor, self.whole), self.bits)


def bits_of(tensor: torch.Tensor, whole: bool) -> torch.Tensor:
    """Return the sum of the tensor's elements, or of some, taken as integers; it wraps around at 64 bits."""
    values = tensor.detach()
    values = values._values() if values.is_sparse else values
    values = torch.view_as_real(values) if values.is_complex() else values
    integers = values.view(_INTEGERS[values.element_size()])
    if not whole and integers.numel() > _SMALL and _is_dense(integers):
        integers = integers.as_strided((integers.numel() // _STRIDE,), (_STRIDE,))
    if integers.element_size() == 8:  # a sum that wraps around does not see 4096 exponents that each lose one
        integers = integers ^ (integers >> 29)
    return integers.sum()


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements follow each other in memory, in one of the usual orders."""
    return tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last)
