"""Collectives in place on flat arenas cut at `bounds`: what the host optimizer runs on.

`buffer`: 1-d, contiguous and writable. `bounds`: size + 1 offsets from 0 to its length that never decrease; rank
r's chunk is `buffer[bounds[r]:bounds[r + 1]]`. Errors as in `ringtrain.collectives.api`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ringtrain.collectives.tensors import check_writable, tensor_of
from ringtrain.communicators.base import Communicator, Updater
from ringtrain.errors import ConfigurationError
from ringtrain.kernels.update import ChunkUpdate
from ringtrain.process_groups.executor import Handle
from ringtrain.process_groups.process_sets import ProcessSet
from ringtrain.process_groups.submit import Work, call, submit
from ringtrain.reduction.cuts import Bounds
from ringtrain.reduction.fold import Flat
from ringtrain.reduction.ops import Op, Sum, check_op
from ringtrain.wire.dtypes import dtype_name
from ringtrain.wire.signature import ANY_ROWS, Signature, Tensor

Set = ProcessSet | None


def all_reduce(buffer: Flat, op: Op = Sum, name: str | None = None, process_set: Set = None) -> None:
    """Fold `buffer` of all ranks in place."""
    call(_all_reduce(buffer, op, name), process_set)


def all_reduce_async(buffer: Flat, op: Op = Sum, name: str | None = None, process_set: Set = None) -> Handle[None]:
    """Begin `all_reduce`."""
    return submit(_all_reduce(buffer, op, name), process_set)


def reduce_scatter(
    buffer: Flat, bounds: Sequence[int], op: Op = Sum, name: str | None = None, process_set: Set = None
) -> None:
    """Fold this rank's chunk in place. What the rest of `buffer` holds after that is not defined."""
    call(_reduce_scatter(buffer, bounds, op, name), process_set)


def reduce_scatter_async(
    buffer: Flat, bounds: Sequence[int], op: Op = Sum, name: str | None = None, process_set: Set = None
) -> Handle[None]:
    """Begin `reduce_scatter`."""
    return submit(_reduce_scatter(buffer, bounds, op, name), process_set)


def all_gather(buffer: Flat, bounds: Sequence[int], name: str | None = None, process_set: Set = None) -> None:
    """Fill `buffer` in place with every rank's chunk."""
    call(_all_gather(buffer, bounds, name), process_set)


def all_gather_async(
    buffer: Flat, bounds: Sequence[int], name: str | None = None, process_set: Set = None
) -> Handle[None]:
    """Begin `all_gather`."""
    return submit(_all_gather(buffer, bounds, name), process_set)


def all_to_all_async(parts: Sequence[Flat], process_set: Set = None) -> Handle[list[Flat]]:
    """Begin to send `parts[p]` (1-d, contiguous) to position p; the result is what each position sent here."""
    kinds = dict.fromkeys(dtype_name(part.dtype) for part in parts)
    what = Signature("all_to_all", tuple(Tensor(None, kind, (ANY_ROWS,)) for kind in kinds))
    return submit(lambda communicator: communicator.all_to_all(what, parts), process_set)


def can_update(gradients: Flat, weights: Flat, process_set: Set = None) -> bool:
    """Whether `update` takes slices of these, which `allocate` gave. The same on all ranks. Collective."""

    def work(communicator: Communicator) -> bool:
        return isinstance(communicator, Updater) and communicator.can_update(gradients, weights)

    return call(work, process_set)


def update(gradients: Flat, bounds: Sequence[int], op: Op, change: ChunkUpdate, process_set: Set = None) -> None:
    """Reduce this rank's chunk of `gradients`, apply `change` to it, and write the new weights to all ranks.

    They are new everywhere when the next update, or this one if it is the last, returns; `gradients` must not be
    written before that.
    """
    what = _signature("update", gradients, None, op)

    def work(communicator: Communicator) -> None:
        cuts = _checked(bounds, gradients, len(communicator.ranks))
        _updater(communicator).update(what, gradients, cuts, op, change)

    call(work, process_set)


def finish_updates(process_set: Set = None) -> bool:
    """Make the weights of the update before new now, no other one follows at once; False: they wait."""
    return call(lambda ring: _updater(ring).finish_updates(), process_set)


def _updater(communicator: Communicator) -> Updater:
    assert isinstance(communicator, Updater), "ask can_update first"
    return communicator


def allocate(length: int, dtype: Any, process_set: Set = None) -> Flat:
    """Return `length` zeros of `dtype`, for buffers that come back every step.

    Ranks of one pod reduce such buffers, and slices of them, where they lie. Called by all ranks alike.
    """
    kind = np.dtype(dtype)
    memory: Flat = call(lambda communicator: communicator.allocate(length * kind.itemsize), process_set)
    return memory.view(kind)


def _all_reduce(buffer: Flat, op: Op, name: str | None) -> Work[None]:
    what = _signature("all_reduce", buffer, name, op)
    return lambda communicator: communicator.all_reduce(what, buffer, buffer, op)


def _reduce_scatter(buffer: Flat, bounds: Sequence[int], op: Op, name: str | None) -> Work[None]:
    what = _signature("reduce_scatter", buffer, name, op)

    def work(communicator: Communicator) -> None:
        cuts = _checked(bounds, buffer, len(communicator.ranks))
        chunk = buffer[cuts[communicator.position] : cuts[communicator.position + 1]]
        communicator.reduce_scatter(what, buffer, cuts, chunk, op)

    return work


def _all_gather(buffer: Flat, bounds: Sequence[int], name: str | None) -> Work[None]:
    what = _signature("all_gather", buffer, name, None)
    return lambda communicator: communicator.all_gather(
        what, buffer, _checked(bounds, buffer, len(communicator.ranks))
    )


def _signature(kind: str, buffer: Any, name: str | None, op: Op | None) -> Signature:
    array = check_writable(buffer, kind)
    if array.ndim != 1 or not array.flags.c_contiguous or not array.flags.aligned or not array.dtype.isnative:
        raise ConfigurationError(
            f"{kind} needs a 1-d contiguous array in native byte order, aligned; "
            f"got shape {array.shape}, strides {array.strides}, dtype {array.dtype.str}"
        )
    if op is not None:
        check_op(op, dtype_name(array.dtype))
    return Signature(kind, (tensor_of(array, name),), op.value if op is not None else None)


def _checked(bounds: Sequence[int], buffer: Flat, size: int) -> Bounds:
    cuts = tuple(int(bound) for bound in bounds)
    if len(cuts) != size + 1 or cuts[0] != 0 or cuts[-1] != len(buffer) or list(cuts) != sorted(cuts):
        raise ConfigurationError(
            f"bounds are {list(cuts)}; expected {size + 1} offsets from 0 to {len(buffer)} that never decrease"
        )
    return cuts
