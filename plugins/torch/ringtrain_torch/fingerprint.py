"""Detection of changes of a tensor, without storing a copy of it."""

from dataclasses import dataclass
from typing import Final

import torch

# Integers of the same width as the elements, so that any tensor can be viewed as one of these.
_INTEGERS: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# For a tensor with more than _SMALL elements, one in _STRIDE is read if a part suffices. A prime, which divides no
# usual shape.
_SMALL: Final = 4096
_STRIDE: Final = 1021


@dataclass(frozen=True, eq=False)
class TorchFingerprint:
    """Fingerprint of a tensor's content: the tensor object, its version counter, and the sum of its bits.

    PyTorch does not count writes through `.data`, so the bits are read as well: all of them (`whole`), which takes 28
    ms for 100 MB on one core, or every 1021st element of a large tensor, which suffices to detect that all of them were
    scaled or cleared.
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
        """Return a fingerprint without bits, for a tensor whose bits are about to change."""
        return cls(tensor, False, tensor._version, None)

    def is_of(self, tensor: torch.Tensor | None) -> bool:
        """Return whether `tensor` is the tensor of this fingerprint, with the same version and bits."""
        if tensor is not self.tensor or tensor._version != self.version:
            return False
        return self.bits is None or self.has_bits_of(tensor)

    def has_bits_of(self, tensor: torch.Tensor) -> bool:
        """Return whether `tensor` is the tensor of this fingerprint, with the same bits. The version counter is
        ignored."""
        return tensor is self.tensor and self.bits is not None and torch.equal(bits_of(tensor, self.whole), self.bits)


def bits_of(tensor: torch.Tensor, whole: bool) -> torch.Tensor:
    """Return the sum of bit patterns as a 64-bit integer: of all elements if `whole`, otherwise of a sample."""
    values = tensor.detach()
    values = values._values() if values.is_sparse else values
    values = torch.view_as_real(values) if values.is_complex() else values
    integers = values.view(_INTEGERS[values.element_size()])
    if not whole and integers.numel() > _SMALL and _is_dense(integers):
        integers = integers.as_strided((integers.numel() // _STRIDE,), (_STRIDE,))
    if integers.element_size() == 8:  # without this, the sum would not change if 4096 exponents each decrease by one
        integers = integers ^ (integers >> 29)
    return integers.sum()


def _is_dense(tensor: torch.Tensor) -> bool:
    """Return whether the elements fill their memory without gaps."""
    return tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last)
