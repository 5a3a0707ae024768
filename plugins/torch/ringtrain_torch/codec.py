"""Codec for PyTorch's tensors, sizes, dtypes and devices in checkpoints."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ringtrain.adapter import dtype_of


class TorchCodec:
    """Codec for dense tensors, stored as host arrays. float8, which numpy lacks, is stored as bytes with its dtype."""

    def encode(self, value: Any, keep: Callable[[NDArray[Any]], str]) -> Mapping[str, Any] | None:
        if isinstance(value, torch.Tensor):
            array, dtype = _array_of(value)
            return None if array is None else {"$tensor": keep(array), **({"dtype": dtype} if dtype else {})}
        if isinstance(value, torch.Size):
            return {"$size": list(value)}
        if isinstance(value, torch.dtype | torch.device):
            return {f"${type(value).__name__}": str(value).removeprefix("torch.")}
        return None

    def decode(self, tag: str, tree: Mapping[str, Any], content: Any) -> Any:
        if tag == "tensor":
            return _tensor_of(content, tree.get("dtype"))
        if tag == "size":
            return torch.Size(content)
        return torch.device(content) if tag == "device" else getattr(torch, content)


CODEC = TorchCodec()


def _array_of(tensor: Any) -> tuple[NDArray[Any] | None, str]:
    """Return the tensor as an array (None if numpy cannot represent it), and the name of its dtype if numpy
    lacks it."""
    host = tensor.detach().cpu()
    name = str(host.dtype).removeprefix("torch.")
    try:
        if name == "bfloat16":  # numpy() does not support it; float32 contains all of its values
            return host.float().numpy().astype(dtype_of("bfloat16")), ""
        if name.startswith("float8"):
            return host.view(torch.uint8).numpy(), name
        return host.resolve_conj().resolve_neg().numpy(), ""
    except (TypeError, RuntimeError):
        return None, ""


def _tensor_of(array: NDArray[Any], dtype: str | None) -> Any:
    own = array if array.flags.writeable else array.copy()
    if own.dtype.name == "bfloat16":
        return torch.from_numpy(own.view(np.int16)).view(torch.bfloat16)
    tensor = torch.from_numpy(own)
    return tensor.view(getattr(torch, dtype)) if dtype else tensor
