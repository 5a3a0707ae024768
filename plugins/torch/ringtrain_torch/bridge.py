"""Conversion between tensors and numpy arrays: without a copy on the CPU, through pinned memory elsewhere."""

import ctypes
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from ringtrain.adapter import Array, dtype_of
from ringtrain.errors import ConfigurationError

NAMES: Final = {
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.uint8: "uint8",
    torch.int8: "int8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.bool: "bool",
    torch.complex64: "complex64",
    torch.complex128: "complex128",
}


def name_of(tensor: torch.Tensor) -> str:
    """Return the name of the tensor's dtype. Raises ConfigurationError for a dtype or layout that cannot be sent."""
    if tensor.layout is not torch.strided:
        way_out = "pass it to sparse_allreduce_async, or call" if tensor.is_sparse else "call"
        raise ConfigurationError(
            f"a tensor has layout {tensor.layout}, which cannot be sent; {way_out} to_dense() first"
        )
    try:
        return NAMES[tensor.dtype]
    except KeyError:
        raise ConfigurationError(
            f"{tensor.dtype} can't be sent; expected one of {', '.join(map(str, NAMES))}"
        ) from None


def to_arrays(tensors: Sequence[torch.Tensor]) -> Callable[[], Sequence[Array]]:
    """Begin to copy `tensors` to the host; the returned function waits for the copies and returns their arrays.

    Contiguous CPU tensors are not copied: they must not change until the collective is done.
    """
    held = [tensor.detach() if tensor.requires_grad else tensor for tensor in tensors]
    if all(tensor.is_cpu for tensor in held):
        arrays = [as_array(tensor.contiguous()) for tensor in held]
        return lambda: arrays
    hosts, ready = _pending_copies(held)

    def wait() -> Sequence[Array]:
        ready()
        return [as_array(host) for host in hosts]

    return wait


def to_tensor(array: Array | torch.Tensor, device: torch.device | str = "cpu") -> torch.Tensor:
    """Return `array` as a tensor that shares its memory (if it is writable and contiguous), or as a copy on another
    device. A tensor is returned unchanged."""
    if isinstance(array, torch.Tensor):
        return array
    if not array.flags.writeable or not array.flags.c_contiguous:
        array = array.copy()
    if array.dtype.kind == "V":
        tensor = torch.from_numpy(array.view("int16")).view(torch.bfloat16)
    else:
        tensor = torch.from_numpy(array)
    return tensor if torch.device(device).type == "cpu" else tensor.to(device)


def real_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return a complex tensor as pairs of real numbers; a real tensor unchanged."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def tensor_like_param(values: torch.Tensor, param: torch.Tensor) -> torch.Tensor:
    """Return the host tensor `values` on the device of `param`; as complex numbers if `param` is complex."""
    values = torch.view_as_complex(values) if param.is_complex() else values
    return values.to(param.device)


def to_tensors(arrays: Sequence[Array], like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return `arrays` as tensors, each on the device of the tensor at the same position in `like`."""
    return [to_tensor(array, tensor.device) for array, tensor in zip(arrays, like, strict=True)]


def as_array(tensor: torch.Tensor) -> Array:
    """Return a contiguous host tensor as an array that shares its memory."""
    if tensor.dtype is torch.bfloat16:
        raw: Array = tensor.view(torch.int16).numpy()
        return raw.view(dtype_of("bfloat16"))
    array: Array = tensor.numpy()
    return array


def return_freed_memory() -> None:
    """Return memory that malloc does not use to the system, with glibc.

    The agent configures malloc to retain freed memory, which saves page faults in each step. Call this after large
    tensors were freed for good.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


def _pending_copies(tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], Callable[[], Any]]:
    """Begin to copy `tensors` to the host. Returns the copies and a function that waits until they are complete."""
    if tensors[0].device.type != "cuda":
        return [tensor.cpu().contiguous() for tensor in tensors], lambda: None
    hosts = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors]
    for host, tensor in zip(hosts, tensors, strict=True):
        host.copy_(tensor, non_blocking=True)
    done = torch.cuda.Event()
    done.record(torch.cuda.current_stream(tensors[0].device))
    return hosts, done.synchronize
