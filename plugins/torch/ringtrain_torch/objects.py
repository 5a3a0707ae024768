"""Broadcast and gather Python objects. Tensors, numbers, strings and containers of them travel as plain data."""

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

    Numbers, strings, bytes, None, lists, tuples, sets, dictionaries, arrays, tensors and what else a `state_dict`
    is made of travel as data that cannot run code; anything else needs `allow_pickle=True` on every rank. Raises
    ConfigurationError on every rank where the root's object can't be sent.
    """
    return adapter.broadcast_object(obj, root_rank, name, process_set, allow_pickle, TORCH_VALUES)


def allgather_object(
    obj: Any,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    allow_pickle: bool = False,
) -> list[Any]:
    """Return every rank's object, in rank order. What may be sent: as for `broadcast_object`."""
    return adapter.allgather_object(obj, name, process_set, allow_pickle, TORCH_VALUES)


def _torch_saved(obj: Any) -> bytes:
    """Return `obj` as `torch.save` writes it. Raises ConfigurationError for what others would not read."""
    buffer = io.BytesIO()
    try:  # what the other ranks will refuse must fail here, where the object is known
        torch.save(obj, buffer)
        torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
    except Exception as error:
        raise ConfigurationError(f"torch.load(weights_only=True) refuses it: {error}") from error
    return buffer.getvalue()


def _torch_loaded(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=True)


TORCH_VALUES = ForeignWireValues(_torch_saved, _torch_loaded)
