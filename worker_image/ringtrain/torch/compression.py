"""Send gradients in fewer bytes."""

from typing import Any, Final, Protocol

import torch


class Compressor(Protocol):
    """How a tensor is made smaller before it travels and restored after."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return the tensor to send, and what `decompress` needs to know."""

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Return the received tensor as it would have been without compression."""


class NoneCompressor:
    """Send tensors as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor


def _half(half: torch.dtype) -> type[Compressor]:
    class HalfCompressor:
        @staticmethod
        def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
            return (tensor.to(half), tensor.dtype) if tensor.is_floating_point() else (tensor, None)

        @staticmethod
        def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
            return tensor if ctx is None else tensor.to(ctx)

    HalfCompressor.__doc__ = f"Send floating-point tensors as {half}."
    return HalfCompressor


FP16Compressor: Final = _half(torch.float16)
BF16Compressor: Final = _half(torch.bfloat16)


class Compression:
    """The choices for the `compression` argument."""

    none: Final = NoneCompressor
    fp16: Final = FP16Compressor
    bf16: Final = BF16Compressor
