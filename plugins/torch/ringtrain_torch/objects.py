"""Broadcast and gather of Python objects. Tensors, numbers, strings and containers of them are sent as plain data."""

from __future__ import annotations

import io
from typing import Any

import torch

from ringtrain import ProcessSet, adapter, global_process_set
from ringtrain.adapter import ForeignWireValues
from ringtrain.errors import ConfigurationError


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    allow_pickle: bool = False,
) -> Any:
    """Return the object of `root_rank` on every rank.

    Numbers, strings, bytes, None, lists, tuples, sets, dictionaries, arrays, tensors and other contents of a
    `state_dict` are sent as data that cannot execute code; any other object needs `allow_pickle=True` on every rank.
    Raises ConfigurationError on every rank if the root's object cannot be sent.
    """
    return adapter.broadcast_object(obj, root_rank, name, process_set, allow_pickle, TORCH_VALUES)


def allgather_object(
    obj: Any,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    allow_pickle: bool = False,
) -> list[Any]:
    """Return every rank's object, in rank order. The same types as for `broadcast_object` are supported."""
    return adapter.allgather_object(obj, name, process_set, allow_pickle, TORCH_VALUES)


def _torch_saved(obj: Any) -> bytes:
    """Return `obj` in the format of `torch.save`. Raises ConfigurationError if `torch.load` would refuse it."""
    buffer = io.BytesIO()
    try:  # an object that the other ranks refuse must fail here, where it is known
        torch.save(obj, buffer)
        torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
    except Exception as error:
        raise ConfigurationError(
            f"the object cannot be sent: torch.load(weights_only=True) refuses it: {error}"
        ) from error
    return buffer.getvalue()


def _torch_loaded(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=True)


TORCH_VALUES = ForeignWireValues(_torch_saved, _torch_loaded)
