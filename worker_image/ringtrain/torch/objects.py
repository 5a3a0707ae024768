"""Broadcast and gather Python objects. Tensors, numbers, strings and containers of them travel as plain data."""

import io
from typing import Any

import numpy as np
import torch

from ringtrain.errors import ConfigurationError
from ringtrain.named import objects
from ringtrain.named.process_sets import ProcessSet
from ringtrain.named.world import global_process_set, queue_of
from ringtrain.torch.allgather import allgather
from ringtrain.torch.broadcast import broadcast


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    allow_pickle: bool = False,
) -> Any:
    """Return the object of `root_rank` on every rank.

    What a `state_dict` is made of travels as data that cannot run code (`torch.save`, read with `weights_only`);
    anything else needs `allow_pickle=True` on every rank.
    """
    name = name or type(obj).__name__
    own = queue_of(process_set).group.rank == root_rank
    message = _dumps(obj, allow_pickle) if own else b""
    length = broadcast(torch.tensor([len(message)]), root_rank, f"{name}.length", process_set)
    data = _as_tensor(message) if own else torch.empty(int(length), dtype=torch.uint8)
    received = broadcast(data, root_rank, f"{name}.data", process_set)
    return obj if own else _loads(received.numpy().tobytes(), allow_pickle)


def allgather_object(
    obj: Any,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    allow_pickle: bool = False,
) -> list[Any]:
    """Return every rank's object, in rank order. What may be sent: as for `broadcast_object`."""
    name = name or type(obj).__name__
    message = _dumps(obj, allow_pickle)
    lengths = allgather(torch.tensor([len(message)]), f"{name}.length", process_set)
    data = allgather(_as_tensor(message), f"{name}.data", process_set)
    return [_loads(part.numpy().tobytes(), allow_pickle) for part in data.split(lengths.tolist())]


def _as_tensor(message: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(message, np.uint8).copy())


def _dumps(obj: Any, allow_pickle: bool) -> bytes:
    if allow_pickle:
        return objects.dumps(obj, allow_pickle)
    buffer = io.BytesIO()
    torch.save(obj, buffer)
    try:  # what the other ranks will refuse must fail here, where the object is known
        torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
    except Exception as error:
        raise ConfigurationError(
            f"an object of type {type(obj).__qualname__} can't be sent as plain data ({error}); send its "
            "parts, or "
            "pass allow_pickle=True on every rank if you trust them all"
        ) from error
    return b"T" + buffer.getvalue()


def _loads(message: bytes, allow_pickle: bool) -> Any:
    if message[:1] == b"T":
        return torch.load(io.BytesIO(message[1:]), weights_only=True)
    return objects.loads(message, allow_pickle)
