"""Compression of gradients to 16 bits for the reduction, under Horovod's names."""

from typing import Final

import torch

from ringtrain.compression import CompressionChoices, NoneCompressor
from ringtrain.compression import TensorCompressor as Compressor

Compression: Final = CompressionChoices.of(torch.float16, torch.bfloat16, torch.Tensor.to, torch.is_floating_point)
FP16Compressor: Final = Compression.fp16
BF16Compressor: Final = Compression.bf16

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]
