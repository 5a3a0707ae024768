"""Compression of gradients before they are sent, with the classes of Horovod's `Compression`."""

from typing import Any, Final

import tensorflow as tf

from ringtrain.compression import CompressionChoices, NoneCompressor
from ringtrain.compression import TensorCompressor as Compressor


def _is_floating(tensor: Any) -> bool:
    return bool(tensor.dtype.is_floating)


Compression: Final = CompressionChoices.of(tf.float16, tf.bfloat16, tf.cast, _is_floating)
FP16Compressor: Final = Compression.fp16
BF16Compressor: Final = Compression.bf16

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]
