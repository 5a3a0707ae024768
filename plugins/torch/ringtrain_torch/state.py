"""Broadcast of weights and optimizer state, so that all ranks start equally."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from ringtrain.errors import ConfigurationError, kind_of
from ringtrain_torch.gather import broadcast, broadcast_async_
from ringtrain_torch.handles import synchronize
from ringtrain_torch.objects import broadcast_object
from ringtrain_torch.parameters import in_place


def broadcast_parameters(params: Mapping[str, Any] | Iterable[Any], root_rank: int) -> None:
    """Overwrite the parameters on all ranks with those of `root_rank`.

    `params`: a `state_dict()`, `named_parameters()` or `parameters()`. Entries that are None are skipped.
    """
    handles = []
    for name, tensor in _named_tensors(params):
        if tensor is None:
            continue
        if not isinstance(tensor, torch.Tensor):
            raise ConfigurationError(f"broadcast_parameters: {name!r} is {kind_of(tensor)}; expected a tensor")
        handles.append(broadcast_async_(tensor, root_rank, f"parameters.{name}"))
    for handle in handles:
        synchronize(handle)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Overwrite the optimizer's state and options with the values of `root_rank`, even if the optimizer has no state
    yet.

    `model`: accepted for compatibility with Horovod, and ignored.
    """
    tensors: list[torch.Tensor] = []

    def taken_out(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        tensors.append(leaf)
        return {_TENSOR: len(tensors) - 1}

    skeleton = map_tensor_leaves(optimizer.state_dict(), taken_out)
    described = [(tensor.dtype, tuple(tensor.shape), tensor.device.type) for tensor in tensors]
    skeleton, described = broadcast_object((skeleton, described), root_rank, "optimizer_state")
    received = []
    for index, (dtype, shape, device) in enumerate(described):
        own = tensors[index] if index < len(tensors) else None
        if own is None or own.dtype is not dtype or tuple(own.shape) != shape:
            own = torch.empty(shape, dtype=dtype, device=device)
        received.append(broadcast(own.detach(), root_rank, f"optimizer_state.{index}"))
    loaded = map_tensor_leaves(skeleton, lambda leaf: received[leaf[_TENSOR]] if _is_torch_mark(leaf) else leaf)
    with in_place(optimizer):
        optimizer.load_state_dict(loaded)


def _named_tensors(params: Mapping[str, Any] | Iterable[Any]) -> Iterable[tuple[str, Any]]:
    if isinstance(params, Mapping):
        return sorted(params.items())
    if isinstance(params, str | bytes) or not isinstance(params, Iterable):
        raise ConfigurationError(f"broadcast_parameters: params is {kind_of(params)}; expected a list or dict")
    return [
        (entry[0], entry[1]) if isinstance(entry, tuple) else (str(index), entry) for index, entry in enumerate(params)
    ]


# Key of the placeholder of a tensor: a dictionary with the tensor's index.
_TENSOR = "__tensor__"


def _is_torch_mark(value: Any) -> bool:
    return isinstance(value, dict) and _TENSOR in value


def map_tensor_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return `value` with `change(leaf)` for each leaf of its dicts, lists and tuples."""
    if isinstance(value, dict) and not _is_torch_mark(value):
        return {key: map_tensor_leaves(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map_tensor_leaves(item, change) for item in value)
    return change(value)
