"""Compression of gradients before they are sent. Rounding errors are added to the next message of the same tensor.

Error feedback after Seide et al. 2014 and Karimireddy et al. 2019. Off by default.
"""

from ringtrain.compression.casts import CompressionChoices, NoneCompressor, TensorCompressor, run_compressed
from ringtrain.compression.compressor import INT8, Compressor
from ringtrain.compression.halves import HALVES

__all__ = [
    "HALVES",
    "INT8",
    "CompressionChoices",
    "Compressor",
    "NoneCompressor",
    "TensorCompressor",
    "run_compressed",
]
