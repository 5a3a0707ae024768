"""Send gradients in fewer bytes."""

from typing import Final

import torch

from ringtrain.compression.casts import CompressionChoices, NoneCompressor, half_compressor
from ringtrain.compression.casts import TensorCompressor as Compressor

FP16Compressor: Final = half_compressor(torch.float16, torch.Tensor.to, torch.is_floating_point)
BF16Compressor: Final = half_compressor(torch.bfloat16, torch.Tensor.to, torch.is_floating_point)
Compression: Final = CompressionChoices(FP16Compressor, BF16Compressor)

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]
