"""Collectives in place on flat buffers: what the host optimizer runs.

Arguments are checked before work is queued.

`buffer`: 1-d, contiguous and writable. `bounds`: size + 1 offsets from 0 to its length that never decrease; rank
r's chunk is `buffer[bounds[r]:bounds[r + 1]]`.
"""

from collections.abc import Sequence
from typing import Any

from ringtrain.collectives.tensors import check_writable, tensor_of
from ringtrain.collectives.work import Work
from ringtrain.communicators.base import Communicator
from ringtrain.errors import ConfigurationError
from ringtrain.reduction.cuts import Bounds
from ringtrain.reduction.fold import Flat
from ringtrain.reduction.ops import ReduceOp, check_op
from ringtrain.wire.dtypes import dtype_name
from ringtrain.wire.signature import ANY_ROWS, Signature, Tensor


def all_reduce(buffer: Flat, op: ReduceOp, name: str | None) -> Work[None]:
    """Fold `buffer` of all ranks."""
    what = signature_of("all_reduce", buffer, name, op)
    return lambda communicator: communicator.all_reduce(what, buffer, buffer, op)


def reduce_scatter(buffer: Flat, bounds: Sequence[int], op: ReduceOp, name: str | None) -> Work[None]:
    """Fold this rank's chunk. What the rest of `buffer` holds after that is not defined."""
    what = signature_of("reduce_scatter", buffer, name, op)

    def work(communicator: Communicator) -> None:
        cuts = checked_bounds(bounds, buffer, len(communicator.ranks))
        chunk = buffer[cuts[communicator.position] : cuts[communicator.position + 1]]
        communicator.reduce_scatter(what, buffer, cuts, chunk, op)

    return work


def all_gather(buffer: Flat, bounds: Sequence[int], name: str | None) -> Work[None]:
    """Fill `buffer` with every rank's chunk."""
    what = signature_of("all_gather", buffer, name, None)
    return lambda communicator: communicator.all_gather(
        what, buffer, checked_bounds(bounds, buffer, len(communicator.ranks))
    )


def all_to_all(parts: Sequence[Flat]) -> Work[list[Flat]]:
    """Send `parts[p]` (1-d, contiguous) to position p; the result is what each position sent here."""
    kinds = dict.fromkeys(dtype_name(part.dtype) for part in parts)
    what = Signature("all_to_all", tuple(Tensor(None, kind, (ANY_ROWS,)) for kind in kinds))
    return lambda communicator: communicator.all_to_all(what, parts)


def broadcast(buffer: Flat) -> Work[None]:
    """Fill `buffer` with that of the first rank of the set."""
    what = signature_of("broadcast", buffer, None, None)
    return lambda communicator: communicator.broadcast(what, buffer, 0)


def signature_of(kind: str, buffer: Any, name: str | None, op: ReduceOp | None) -> Signature:
    """The signature of a collective on `buffer`. Raises ConfigurationError for what is no such buffer."""
    array = check_writable(buffer, kind)
    if array.ndim != 1 or not array.flags.c_contiguous or not array.flags.aligned or not array.dtype.isnative:
        raise ConfigurationError(
            f"{kind} needs a 1-d contiguous array in native byte order, aligned; "
            f"got shape {array.shape}, strides {array.strides}, dtype {array.dtype.str}"
        )
    if op is not None:
        check_op(op, dtype_name(array.dtype))
    return Signature(kind, (tensor_of(array, name),), op.value if op is not None else None)


def checked_bounds(bounds: Sequence[int], buffer: Flat, size: int) -> Bounds:
    """`bounds` as integers. Raises ConfigurationError where they do not cut `buffer` for `size` ranks."""
    cuts = tuple(int(bound) for bound in bounds)
    if len(cuts) != size + 1 or cuts[0] != 0 or cuts[-1] != len(buffer) or list(cuts) != sorted(cuts):
        raise ConfigurationError(
            f"bounds are {list(cuts)}; expected {size + 1} offsets from 0 to {len(buffer)} that never decrease"
        )
    return cuts
