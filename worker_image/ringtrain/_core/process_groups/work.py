"""Collectives as functions of a communicator, which a process group's executor runs in order.

Arguments are checked when the function is created, before it is queued.
"""

import functools
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringtrain._core.communicators.base import (
    Communicator,
    GroupedReducer,
    SharedCommunicatorTurn,
    ShortAllreduce,
    ShortReducer,
)
from ringtrain._core.process_groups.tensors import (
    Array,
    as_array,
    as_rows,
    check_writable,
    collective_array_to_bytes,
    flat_collective_array,
    rows_of,
    tensor_of,
)
from ringtrain._core.reduction.arithmetic import adasum, adasum_error
from ringtrain._core.reduction.cuts import even_bounds, is_same_memory, length_offsets
from ringtrain._core.reduction.ops import Adasum, ReduceOp, check_op
from ringtrain._core.wire.dtypes import dtype_name
from ringtrain._core.wire.signature import WireSignature, WireTensorSignature
from ringtrain.errors import ConfigurationError, counted

T = TypeVar("T")
Work = Callable[[Communicator], T]

_COUNT_BYTES = 8  # size of a number of rows, int64


def allreduce(x: ArrayLike, op: ReduceOp, name: str | None) -> Work[Array]:
    source = as_array(x)
    what = reduction_signature("allreduce", [source], op, name)

    def work(communicator: Communicator) -> Array:
        result = np.empty_like(source)
        _reduce_arrays(communicator, what, source, result, op)
        return result

    return work


def allreduce_in_place(x: Array, op: ReduceOp, name: str | None) -> Work[Array]:
    what = reduction_signature("allreduce", [check_writable(x, "allreduce_")], op, name)
    return _collective_in_place(x, lambda communicator, buffer: _reduce_arrays(communicator, what, buffer, buffer, op))


def grouped_allreduce(
    xs: Sequence[ArrayLike], op: ReduceOp, name: str | None, signature: WireSignature | None = None
) -> Work[list[Array]]:
    """Return the function that runs `ringtrain.grouped_allreduce` on a communicator.

    `signature`: compared between ranks, instead of names, dtypes and shapes that they have already agreed on.
    """
    sources = [as_array(x) for x in xs]
    what = signature or reduction_signature("allreduce", sources, op, name)

    def work(communicator: Communicator) -> list[Array]:
        if not sources:  # nothing to send, but every rank must call it
            communicator.barrier(what)
        if op is Adasum:
            return [
                _adasum(communicator, _collective_signature_part(what, [i]), source) for i, source in enumerate(sources)
            ]
        results: list[Array] = [np.empty(0)] * len(sources)
        anywhere = communicator if isinstance(communicator, GroupedReducer) else None
        for indices in _by_dtype(sources):
            runs = [indices] if anywhere else _fused_arrays(indices, sources, communicator.fusion_bytes)
            for fused in runs:
                members = [flat_collective_array(sources[i]) for i in fused]
                bounds = length_offsets([len(member) for member in members])
                buffer = np.empty(bounds[-1], members[0].dtype)
                if anywhere:
                    anywhere.all_reduce_grouped(_collective_signature_part(what, fused), members, buffer, op)
                else:
                    source = members[0] if len(members) == 1 else np.concatenate(members, out=buffer)
                    communicator.all_reduce(_collective_signature_part(what, fused), source, buffer, op)
                for slot, i in enumerate(fused):
                    results[i] = buffer[bounds[slot] : bounds[slot + 1]].reshape(sources[i].shape)
        return results

    return work


def reduce_into(what: WireSignature, pieces: Sequence[Array], target: Array, op: ReduceOp) -> Work[None]:
    """Return a function that reduces the concatenation of the flat `pieces` over all ranks into `target`.

    Each piece may already be at its place in `target`; this may differ between ranks.
    """

    def work(communicator: Communicator) -> None:
        if isinstance(communicator, GroupedReducer):
            communicator.all_reduce_grouped(what, pieces, target, op)
            return
        for piece, (start, stop) in zip(
            pieces, pairwise(length_offsets([len(piece) for piece in pieces])), strict=True
        ):
            if not is_same_memory(piece, target[start:stop]):
                target[start:stop] = piece
        communicator.all_reduce(what, target, target, op)

    return work


def grouped_reducescatter(xs: Sequence[ArrayLike], op: ReduceOp, name: str | None) -> Work[list[Array]]:
    sources = [as_rows(x) for x in xs]
    what = reduction_signature("reducescatter", sources, op, name)

    def work(communicator: Communicator) -> list[Array]:
        if not sources:
            communicator.barrier(what)
        size, position = len(communicator.ranks), communicator.position
        if op is Adasum:
            raise ConfigurationError("reducescatter: op is Adasum; expected Sum, Average, Min, Max or Product")
        results: list[Array] = [np.empty(0)] * len(sources)
        for indices in _by_dtype(sources):
            cuts = {i: even_bounds(len(sources[i]), size) for i in indices}
            # Sorted by rank, then by tensor, so that a rank's part of all tensors is one chunk.
            pieces = [[sources[i][cuts[i][p] : cuts[i][p + 1]] for i in indices] for p in range(size)]
            bounds = length_offsets([sum(piece.size for piece in row) for row in pieces])
            rows = [flat_collective_array(piece) for row in pieces for piece in row]
            buffer = flat_collective_array(sources[indices[0]]) if len(indices) == 1 else np.concatenate(rows)
            chunk = np.empty(bounds[position + 1] - bounds[position], buffer.dtype)
            communicator.reduce_scatter(_collective_signature_part(what, indices), buffer, bounds, chunk, op)
            own = length_offsets([piece.size for piece in pieces[position]])
            for slot, i in enumerate(indices):
                results[i] = chunk[own[slot] : own[slot + 1]].reshape(pieces[position][slot].shape)
        return results

    return work


def grouped_allgather(xs: Sequence[ArrayLike], name: str | None) -> Work[list[Array]]:
    sources = [as_rows(x) for x in xs]
    what = WireSignature(
        "allgather", tuple(rows_of(a, _named_of_group(name, i, len(xs))) for i, a in enumerate(sources))
    )
    # The numbers of rows are sent first: the length does not determine them for a tensor with an empty dimension.
    counts = np.array([len(source) for source in sources], np.int64)
    packed = np.concatenate(
        [collective_array_to_bytes(counts), *(collective_array_to_bytes(source) for source in sources)]
    )

    def work(communicator: Communicator) -> list[Array]:
        parts = communicator.all_gather_parts(what, packed)
        unpacked = [_unpack_arrays(part, sources) for part in parts]
        return [np.concatenate(tensors) for tensors in zip(*unpacked, strict=True)]

    return work


def broadcast(x: ArrayLike, root_rank: int, name: str | None) -> Work[Array]:
    source = as_array(x)
    what = WireSignature("broadcast", (tensor_of(source, name),), root=root_rank)

    def work(communicator: Communicator) -> Array:
        root = _position_of(root_rank, communicator)
        result = source.copy() if communicator.position == root else np.empty_like(source)
        communicator.broadcast(what, flat_collective_array(result), root)
        return result

    return work


def broadcast_in_place(x: Array, root_rank: int, name: str | None) -> Work[Array]:
    what = WireSignature("broadcast", (tensor_of(check_writable(x, "broadcast_"), name),), root=root_rank)
    return _collective_in_place(
        x, lambda ring, buffer: ring.broadcast(what, flat_collective_array(buffer), _position_of(root_rank, ring))
    )


def alltoall(x: ArrayLike, splits: ArrayLike | None, name: str | None) -> Work[tuple[Array, NDArray[np.int64]]]:
    source = as_rows(x)
    what = WireSignature("alltoall", (rows_of(source, name),))

    def work(communicator: Communicator) -> tuple[Array, NDArray[np.int64]]:
        counts = _checked_splits(splits, len(source), len(communicator.ranks))
        bounds = length_offsets([int(count) for count in counts])
        parts = [
            np.concatenate(
                [
                    collective_array_to_bytes(counts[p : p + 1]),
                    collective_array_to_bytes(source[bounds[p] : bounds[p + 1]]),
                ]
            )
            for p in range(len(counts))
        ]
        received = [_unpack_arrays(part, [source])[0] for part in communicator.all_to_all(what, parts)]
        return np.concatenate(received), np.array([len(rows) for rows in received], np.int64)

    return work


def barrier() -> Work[None]:
    return lambda communicator: communicator.barrier(WireSignature("barrier"))


def _reduce_arrays(communicator: Communicator, what: WireSignature, source: Array, target: Array, op: ReduceOp) -> None:
    if op is Adasum:
        target[...] = _adasum(communicator, what, source)
    else:
        communicator.all_reduce(what, flat_collective_array(source), flat_collective_array(target), op)


def _collective_in_place(target: Array, collective: Callable[[Communicator, Array], None]) -> Work[Array]:
    def work(communicator: Communicator) -> Array:
        buffer = as_array(target)
        collective(communicator, buffer)
        if not np.may_share_memory(buffer, target):  # not contiguous: the result is in a copy
            target[...] = buffer
        return target

    return work


def _adasum(communicator: Communicator, what: WireSignature, source: Array) -> Array:
    """Return the Adasum of `source` of all ranks: gather every array on every rank, and combine them there."""
    error = adasum_error(len(communicator.ranks))
    if error:
        raise ConfigurationError(error)
    parts = communicator.all_gather_parts(what, collective_array_to_bytes(source))
    return adasum([part.view(source.dtype).reshape(source.shape) for part in parts])


def reduction_signature(kind: str, arrays: Sequence[Array], op: ReduceOp, name: str | None) -> WireSignature:
    if len(arrays) == 1:
        return _group_reduction_of_one(kind, tensor_of(arrays[0], name), op)
    tensors = tuple(tensor_of(array, _named_of_group(name, i, len(arrays))) for i, array in enumerate(arrays))
    for dtype in {tensor.dtype for tensor in tensors}:
        check_op(op, dtype)
    return WireSignature(kind, tensors, op.value)


@functools.lru_cache(maxsize=4096)  # a loop averages the same tensor in every step
def _group_reduction_of_one(kind: str, tensor: WireTensorSignature, op: ReduceOp) -> WireSignature:
    check_op(op, tensor.dtype)
    return WireSignature(kind, (tensor,), op.value)


def _named_of_group(name: str | None, index: int, count: int) -> str | None:
    return name if name is None or count == 1 else f"{name}.{index}"


def _by_dtype(arrays: Sequence[Array]) -> list[list[int]]:
    """Return the indices of `arrays` grouped by dtype, in the order in which the dtypes first occur."""
    groups: dict[str, list[int]] = defaultdict(list)
    for index, array in enumerate(arrays):
        groups[dtype_name(array.dtype)].append(index)
    return list(groups.values())


def _fused_arrays(indices: list[int], arrays: Sequence[Array], fusion_bytes: int) -> list[list[int]]:
    """Divide `indices` into runs to be reduced together; each run but the last has at least `fusion_bytes`."""
    runs: list[list[int]] = [[]]
    nbytes = 0  # of the last run
    for index in indices:
        if nbytes >= fusion_bytes:
            runs.append([])
            nbytes = 0
        runs[-1].append(index)
        nbytes += arrays[index].nbytes
    return runs


def _collective_signature_part(what: WireSignature, indices: list[int]) -> WireSignature:
    """Return the signature for one part of a grouped collective: the group's signature, with the index of the part's
    first tensor unless the part has all tensors."""
    if len(indices) == len(what.tensors):
        return what
    return WireSignature(what.kind, what.tensors, what.op, None, (indices[0],))


def _unpack_arrays(part: Array, like: Sequence[Array]) -> list[Array]:
    """Return the tensors in one rank's message, which has the numbers of rows, then the rows of each tensor."""
    counts = part[: _COUNT_BYTES * len(like)].view(np.int64)
    at = _COUNT_BYTES * len(like)
    tensors = []
    for count, source in zip(counts, like, strict=True):
        shape = (int(count), *source.shape[1:])
        end = at + int(np.prod(shape, dtype=np.int64)) * source.itemsize
        tensors.append(part[at:end].view(source.dtype).reshape(shape))
        at = end
    return tensors


def _checked_splits(splits: ArrayLike | None, rows: int, size: int) -> NDArray[np.int64]:
    if splits is None:
        if rows % size:
            raise ConfigurationError(
                f"alltoall: {counted(rows, 'row')} can't be divided equally among {size} ranks; pass splits"
            )
        return np.full(size, rows // size, np.int64)
    given = np.asarray(splits)
    counts = given.astype(np.int64)
    if counts.shape != (size,) or (counts != given).any() or (counts < 0).any() or counts.sum() != rows:
        raise ConfigurationError(
            f"alltoall splits are {given.tolist()}; expected {counted(size, 'number')} of rows, which add up to {rows}"
        )
    return counts


def _position_of(root_rank: int, communicator: Communicator) -> int:
    if root_rank not in communicator.ranks:
        raise ConfigurationError(f"root_rank is {root_rank}; expected one of the ranks {list(communicator.ranks)}")
    return communicator.ranks.index(root_rank)


# Used as the operation of a barrier, on an array without elements.
_BARRIER: Final[Any] = object()
_NOTHING: Final = np.empty(0, np.uint8)


def short_allreduce(communicator: Communicator, turn: SharedCommunicatorTurn) -> ShortAllreduce:
    """Return the fast allreduce of `communicator`; if it has none, a function that always returns None.

    The returned function raises ConfigurationError for an unsupported operation.
    """
    made = (
        communicator.short_allreduce(_short_allreduce_meaning, turn) if isinstance(communicator, ShortReducer) else None
    )
    return made or _no_short_collective


def short_barrier(allreduce: ShortAllreduce) -> bool:
    """Run a barrier by the fast path `allreduce`. Return False if the normal path must be used."""
    return allreduce(_NOTHING, _BARRIER, None, True) is not None


def _short_allreduce_meaning(x: Any, op: ReduceOp, name: str | None) -> WireSignature | None:
    if op is _BARRIER:
        return WireSignature("barrier")
    if op is Adasum or not x.dtype.isnative:
        return None
    return reduction_signature("allreduce", [x], op, name)


def _no_short_collective(x: Any, op: ReduceOp, name: str | None, in_place: bool) -> None:
    return None
