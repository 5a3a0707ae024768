"""Start every rank from the same weights and the same optimizer state."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ringtrain.errors import ConfigurationError
from ringtrain.torch.gather import broadcast, broadcast_async_
from ringtrain.torch.handles import synchronize
from ringtrain.torch.objects import broadcast_object


def broadcast_parameters(params: Mapping[str, Any] | Iterable[Any], root_rank: int) -> None:
    """Overwrite parameters with those of `root_rank`.

    `params`: a `state_dict()`, `named_parameters()` or `parameters()`. Entries that are None are passed over.
    """
    handles = []
    for name, tensor in _named(params):
        if tensor is None:
            continue
        if not isinstance(tensor, torch.Tensor):
            raise ConfigurationError(
                f"broadcast_parameters: {name!r} is a {type(tensor).__name__}; expected a tensor"
            )
        handles.append(broadcast_async_(tensor, root_rank, f"parameters.{name}"))
    for handle in handles:
        synchronize(handle)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Overwrite the optimizer's state and options with those of `root_rank`, also where it has no state yet.

    `model`: accepted for Horovod's sake; nothing depends on it.
    """
    own: dict[str, Any] = optimizer.state_dict()
    tensors: list[torch.Tensor] = []
    skeleton = broadcast_object(_without_tensors(own, tensors), root_rank, "optimizer_state")
    received: dict[int, torch.Tensor] = {}
    for index, (dtype, shape, device) in enumerate(_described(skeleton)):
        local = (
            tensors[index]
            if _same(tensors, index, dtype, shape)
            else torch.empty(shape, dtype=dtype, device=device)
        )
        received[index] = broadcast(local.detach(), root_rank, f"optimizer_state.{index}")
    optimizer.load_state_dict(_with_tensors(skeleton, received))


def _named(params: Mapping[str, Any] | Iterable[Any]) -> Iterable[tuple[str, Any]]:
    if isinstance(params, Mapping):
        return sorted(params.items())
    if isinstance(params, str | bytes) or not isinstance(params, Iterable):
        raise ConfigurationError(
            f"broadcast_parameters: params is a {type(params).__name__}; expected a list or dict"
        )
    return [
        (entry[0], entry[1]) if isinstance(entry, tuple) else (str(index), entry)
        for index, entry in enumerate(params)
    ]


_TENSOR = "__tensor__"


def _without_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Return `value` with each tensor replaced by its description, and append the tensor to `tensors`."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return {
            _TENSOR: len(tensors) - 1,
            "dtype": value.dtype,
            "shape": tuple(value.shape),
            "device": value.device.type,
        }
    if isinstance(value, dict):
        return {key: _without_tensors(item, tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_without_tensors(item, tensors) for item in value)
    return value


def _described(value: Any) -> list[tuple[torch.dtype, tuple[int, ...], str]]:
    """Return dtype, shape and device of each tensor, in the order in which they were taken out."""
    if isinstance(value, dict) and _TENSOR in value:
        return [(value["dtype"], value["shape"], value["device"])]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [description for item in items for description in _described(item)]


def _with_tensors(value: Any, tensors: Mapping[int, torch.Tensor]) -> Any:
    if isinstance(value, dict) and _TENSOR in value:
        return tensors[value[_TENSOR]]
    if isinstance(value, dict):
        return {key: _with_tensors(item, tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_with_tensors(item, tensors) for item in value)
    return value


def _same(tensors: list[torch.Tensor], index: int, dtype: torch.dtype, shape: tuple[int, ...]) -> bool:
    return index < len(tensors) and tensors[index].dtype is dtype and tuple(tensors[index].shape) == shape
