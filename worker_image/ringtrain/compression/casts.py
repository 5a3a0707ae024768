"""Values of the adapters' `compression` argument: send gradients unchanged, as float16 or as bfloat16."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class TensorCompressor(Protocol):
    """Interface of a value of the `compression` argument: converts tensors before sending and after receiving."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the tensor to send, and a context value for `decompress`."""

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the received tensor in the dtype that it had before `compress`."""


class NoneCompressor:
    """Compressor that sends tensors unchanged."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor


@dataclass(frozen=True)
class CompressionChoices:
    """Values of the `compression` argument: `fp16` and `bf16` send floating-point tensors in that dtype."""

    fp16: type[TensorCompressor]
    bf16: type[TensorCompressor]
    none: type[TensorCompressor] = NoneCompressor

    @classmethod
    def of(
        cls, fp16: Any, bf16: Any, cast: Callable[[Any, Any], Any], is_floating: Callable[[Any], bool]
    ) -> CompressionChoices:
        """Return the values for a framework from its half dtypes. `cast(tensor, dtype)`: the framework's conversion."""
        return cls(_half_compressor(fp16, cast, is_floating), _half_compressor(bf16, cast, is_floating))


def _half_compressor(
    half: Any, cast: Callable[[Any, Any], Any], is_floating: Callable[[Any], bool]
) -> type[TensorCompressor]:
    """Return a compressor that sends floating-point tensors as `half`. `cast`: the framework's conversion."""

    class HalfCompressor:
        @staticmethod
        def compress(tensor: Any) -> tuple[Any, Any]:
            return (cast(tensor, half), tensor.dtype) if is_floating(tensor) else (tensor, None)

        @staticmethod
        def decompress(tensor: Any, ctx: Any) -> Any:
            return tensor if ctx is None else cast(tensor, ctx)

    HalfCompressor.__doc__ = f"Send floating-point tensors as {half}."
    return HalfCompressor


def run_compressed(
    compression: type[TensorCompressor], tensors: Sequence[Any], collective: Callable[[list[Any]], Sequence[Any]]
) -> list[Any]:
    """Compress `tensors`, run `collective` on them, and return its results decompressed."""
    small = [compression.compress(tensor) for tensor in tensors]
    results = collective([tensor for tensor, _ in small])
    return [compression.decompress(tensor, ctx) for tensor, (_, ctx) in zip(results, small, strict=True)]
