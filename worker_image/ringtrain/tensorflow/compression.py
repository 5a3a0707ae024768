"""Send gradients in fewer bytes."""

from typing import Any, Final

import tensorflow as tf

from ringtrain.compression.casts import CompressionChoices, NoneCompressor, half_compressor
from ringtrain.compression.casts import TensorCompressor as Compressor


def _is_floating(tensor: Any) -> bool:
    return bool(tensor.dtype.is_floating)


FP16Compressor: Final = half_compressor(tf.float16, tf.cast, _is_floating)
BF16Compressor: Final = half_compressor(tf.bfloat16, tf.cast, _is_floating)
Compression: Final = CompressionChoices(FP16Compressor, BF16Compressor)

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]
