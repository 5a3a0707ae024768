"""Send gradients in fewer bytes."""

from typing import Any, Final, Protocol

import tensorflow as tf


class Compressor(Protocol):
    """How a tensor is made smaller before it travels and restored after."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the tensor to send, and what `decompress` needs to know."""

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the received tensor as it would have been without compression."""


class NoneCompressor:
    """Send tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor


def _half(half: Any) -> type[Compressor]:
    class HalfCompressor:
        @staticmethod
        def compress(tensor: Any) -> tuple[Any, Any]:
            return (tf.cast(tensor, half), tensor.dtype) if tensor.dtype.is_floating else (tensor, None)

        @staticmethod
        def decompress(tensor: Any, ctx: Any) -> Any:
            return tensor if ctx is None else tf.cast(tensor, ctx)

    HalfCompressor.__doc__ = f"Send floating-point tensors as {half.name}."
    return HalfCompressor


FP16Compressor: Final = _half(tf.float16)
BF16Compressor: Final = _half(tf.bfloat16)


class Compression:
    """The choices for the `compression` argument."""

    none: Final = NoneCompressor
    fp16: Final = FP16Compressor
    bf16: Final = BF16Compressor
