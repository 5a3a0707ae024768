"""Execution of collectives that all ranks have submitted; small reductions are fused into one.

Types that communicators cannot reduce are converted before and after. The rules are the same in every framework: a sum
has its dtype's own arithmetic (integers wrap, as numpy's and torch's do), and an average of integers is exact, rounded
towards zero, even if the sum would overflow. Complex numbers are reduced as their real and imaginary parts, by Sum and
Average.
"""

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np

from ringtrain._core.communicators.base import Communicator
from ringtrain._core.negotiation.agreement import NegotiatedRequests
from ringtrain._core.negotiation.request import KNOWN_MAX, CollectiveKind, NamedRequest, scalar_error, splits_of
from ringtrain._core.process_groups import work
from ringtrain._core.process_groups.tensors import Array, as_array, flat_collective_array
from ringtrain._core.reduction.arithmetic import scaled
from ringtrain._core.reduction.cuts import Bounds, length_offsets
from ringtrain._core.reduction.ops import Average, ReduceOp, Sum
from ringtrain._core.wire.dtypes import CODES, dtype_of, name_of
from ringtrain._core.wire.signature import WireSignature

# 64 MiB: fused requests complete together, so a larger fusion only delays the first update.
FUSION_BYTES = 64 << 20

# Tensors of a batch that are at most this long on average are copied into one buffer, which is reduced in place.
# Copying 32 KiB takes as long as the Python code for a separate tensor; bench/README has the measurements.
_PACKED_BYTES: Final = 32 << 10

Result = list[Any]


@dataclass(frozen=True, eq=False)
class FusedRequestBatch:
    """Named collectives that run as one collective of the communicator.

    `names`: names of the entries. `bounds`: offsets of the tensors in the buffer into which all are packed; empty if
    they are not packed. The same on all ranks.
    """

    entries: tuple[NegotiatedRequests, ...]
    names: tuple[str, ...]
    bounds: Bounds

    @classmethod
    def of(cls, entries: Sequence[NegotiatedRequests]) -> "FusedRequestBatch":
        return cls(tuple(entries), tuple(entry.name for entry in entries), _entries_packing(entries))

    @property
    def request(self) -> NamedRequest:
        """Return the request of the first entry, whose operation, dtype and scale factors all entries share."""
        return self.entries[0].any_request

    def requests_of(self, ranks: Sequence[int]) -> list[NamedRequest]:
        """Return the request of each of `ranks`, for a batch with one entry."""
        return [self.entries[0].requests[rank] for rank in ranks]

    def splits_of(self, ranks: Sequence[int]) -> list[tuple[int, ...]]:
        """Return, for an alltoall, the numbers of rows that each of `ranks` sends to each rank."""
        return splits_of(self.requests_of(ranks))

    def reduce_packed(self, communicator: Communicator, packed: Array) -> Array:
        """Return the reduction over all ranks of `packed`, the concatenation of the batch's tensors.

        May change `packed`, and may return it.
        """
        return reduce_packed_entries(communicator, self.request, packed)

    @functools.cached_property
    def fewest_ranks(self) -> int:
        """Return the lowest number of ranks that have data for an entry; the other ranks have called `join`."""
        return min(len(entry.requests) for entry in self.entries)


@runtime_checkable
class SubmittedTensors(Protocol):
    """Function that returns a submission's tensors as arrays, and may exchange them on their device instead."""

    def __call__(self) -> Sequence[Array]:
        """Return the tensors as arrays."""

    def carry_out(
        self, communicator: Communicator, batch: FusedRequestBatch, tensors: Sequence["SubmittedTensors"]
    ) -> list[Result] | None:
        """Exchange the tensors of a batch on their device and return the results; None if arrays must be used.

        Either all ranks decide the same, or both ways exchange the same data.
        """


def fused_request_batches(agreed: Sequence[NegotiatedRequests]) -> Iterator[FusedRequestBatch]:
    """Group requests, in order, into batches that run as one collective. The same on all ranks."""
    for fusible, run in groupby(agreed, key=_fusion_key):
        entries = list(run)
        if fusible is None:
            yield from (FusedRequestBatch.of([entry]) for entry in entries)
            continue
        batch: list[NegotiatedRequests] = []
        size = 0
        for entry in entries:
            if batch and size + _request_bytes(entry.any_request) > FUSION_BYTES:
                yield FusedRequestBatch.of(batch)
                batch, size = [], 0
            batch.append(entry)
            size += _request_bytes(entry.any_request)
        yield FusedRequestBatch.of(batch)


def run_batch(
    communicator: Communicator,
    batch: FusedRequestBatch,
    arrays: Sequence[Sequence[Array] | None],
    targets: Sequence[Array | None],
) -> list[Result]:
    """Run a batch on arrays in host memory, and return the results of each entry.

    `arrays`: this rank's tensors for each entry; None for an entry that this rank has not submitted because it has
    called `join`. `targets`: for each bucket, the array that receives the results, or None.
    """
    request = batch.request
    if request.members:
        return [[_reduce_bucket_request(communicator, request, _arrays_or_zeros(request, arrays[0]), targets[0])]]
    if request.kind is not CollectiveKind.ALLREDUCE:
        return [_run_single_request(communicator, batch.entries[0], arrays[0] or ())]
    given = [_arrays_or_zeros(entry.any_request, own) for entry, own in zip(batch.entries, arrays, strict=True)]
    tensors = [array for own in given for array in own]
    if batch.bounds:
        packed = np.concatenate([array.reshape(-1) for array in tensors], dtype=dtype_of(request.dtypes[0]))
        packed = reduce_packed_entries(communicator, request, packed)
        cuts = itertools.pairwise(batch.bounds)
        finished = iter([packed[slice(*cut)].reshape(like.shape) for cut, like in zip(cuts, tensors, strict=True)])
    else:
        outputs = _allreduce_request(communicator, _all_entries_scaled(tensors, request.prescale), ReduceOp(request.op))
        finished = iter(_all_entries_scaled(outputs, request.postscale))
    return [list(itertools.islice(finished, len(own))) for own in given]


def reduce_packed_entries(communicator: Communicator, request: NamedRequest, packed: Array) -> Array:
    """Return the reduction over all ranks of `packed`, the concatenation of a batch's tensors.

    May change `packed`, and may return it.
    """
    op, dtype, size = ReduceOp(request.op), packed.dtype, len(communicator.ranks)
    own = scaled(packed, request.prescale)
    as_it_is = is_sent_unconverted(dtype, op)
    sent = own if as_it_is else sendable_array(own, op, size)
    buffer = flat_collective_array(sent)
    communicator.all_reduce(WireSignature("allreduce", op=op.value), buffer, buffer, sendable_op(dtype, op))
    return scaled(sent if as_it_is else restore_dtype(sent, op, dtype, size), request.postscale)


@functools.lru_cache(maxsize=KNOWN_MAX)
def request_tensors_error(request: NamedRequest) -> str:
    """Return why the collective does not support the dtypes or shapes in `request`; empty if it does."""
    kind, dtypes, op = request.kind, request.dtypes, request.op
    if kind in (CollectiveKind.ALLGATHER, CollectiveKind.REDUCESCATTER) and (error := scalar_error(request.shapes)):
        return error
    if "object" in dtypes:
        return "text and objects can't be sent as a tensor; use broadcast_object or allgather_object"
    reduces = kind in (CollectiveKind.ALLREDUCE, CollectiveKind.REDUCESCATTER)
    known = {**CODES, **WIDER, **COMPLEX}
    strange = [name for name in dtypes if reduces and name not in known]
    if strange:
        return f"{strange[0]} can't be reduced; expected one of {', '.join(known)}"
    unordered = [name for name in dtypes if reduces and name in COMPLEX and op not in ("Sum", "Average")]
    return f"{unordered[0]} can't be reduced with {op}; expected Sum or Average" if unordered else ""


def _entries_packing(entries: Sequence[NegotiatedRequests]) -> Bounds:
    """Return the offsets of the entries' tensors in one packed buffer; empty if packing is slower or not possible."""
    request = entries[0].any_request
    fits = sum(_request_bytes(entry.any_request) for entry in entries) <= _PACKED_BYTES * len(entries)
    if len(entries) == 1 or not fits or request.op == "Adasum":  # Adasum scales each tensor by its own norm
        return ()
    return length_offsets([math.prod(shape) for entry in entries for shape in entry.any_request.shapes])


def _all_entries_scaled(arrays: list[Array], factor: float) -> list[Array]:
    return arrays if factor == 1.0 else [scaled(array, factor) for array in arrays]


def _allreduce_request(communicator: Communicator, arrays: Sequence[Array], op: ReduceOp) -> list[Array]:
    """Return each of `arrays` reduced over all ranks. The signature has no names, dtypes and shapes, because ranks have
    compared them before."""
    dtype, size = arrays[0].dtype, len(communicator.ranks)
    as_it_is = is_sent_unconverted(dtype, op)
    # Names, dtypes and shapes were agreed on already: the signature need not say them again.
    what = WireSignature("allreduce", op=op.value)
    sent = arrays if as_it_is else [sendable_array(array, op, size) for array in arrays]
    reduced = work.grouped_allreduce(sent, sendable_op(dtype, op), None, what)(communicator)
    return reduced if as_it_is else [restore_dtype(array, op, dtype, size) for array in reduced]


def _reduce_bucket_request(
    communicator: Communicator, request: NamedRequest, arrays: Sequence[Array], target: Array | None
) -> Array:
    """Return the reduction of the concatenation of `arrays`, stored in `target` if that is not None."""
    op = ReduceOp(request.op)
    pieces = [flat_collective_array(scaled(np.ascontiguousarray(array), request.prescale)) for array in arrays]
    buffer = np.empty(sum(len(piece) for piece in pieces), pieces[0].dtype) if target is None else target
    parts, whole = pieces, buffer
    if (real := COMPLEX.get(name_of(buffer.dtype))) is not None:
        parts, whole = [piece.view(real) for piece in pieces], buffer.view(real)
    work.reduce_into(WireSignature("allreduce", op=op.value), [as_array(part) for part in parts], whole, op)(
        communicator
    )
    if request.postscale != 1.0:
        buffer[...] = scaled(buffer, request.postscale)
    return buffer


def _run_single_request(communicator: Communicator, agreed: NegotiatedRequests, arrays: Sequence[Array]) -> Result:
    ranks = communicator.ranks
    request = agreed.requests.get(ranks[communicator.position], agreed.any_request)
    match request.kind:
        case CollectiveKind.ALLGATHER:
            totals = [sum(agreed.requests[r].shapes[i][0] for r in ranks) for i in range(len(arrays))]
            return [_allgather_request(communicator, array, rows) for array, rows in zip(arrays, totals, strict=True)]
        case CollectiveKind.BROADCAST:
            buffers = [np.array(array, order="C") for array in arrays]
            for buffer in buffers:
                what = WireSignature("broadcast", root=request.root)
                communicator.broadcast(what, _entry_bytes(buffer), ranks.index(request.root))
            return buffers
        case CollectiveKind.ALLTOALL:
            return _alltoall_request(communicator, arrays[0], splits_of([agreed.requests[rank] for rank in ranks]))
        case CollectiveKind.REDUCESCATTER:
            op = ReduceOp(request.op)
            reduced = (_reducescatter_request(communicator, scaled(a, request.prescale), op) for a in arrays)
            return [scaled(array, request.postscale) for array in reduced]
    return []  # a barrier: the agreement itself is one


def _allgather_request(communicator: Communicator, array: Array, rows: int) -> Array:
    parts = communicator.all_gather_parts(WireSignature("allgather"), _entry_bytes(array))
    return np.concatenate(parts).view(array.dtype).reshape(rows, *array.shape[1:])


def _alltoall_request(communicator: Communicator, array: Array, splits: Sequence[Sequence[int]]) -> Result:
    """Return the received rows and, as int32, their number per rank. `splits[s][r]`: rows that s sends to r."""
    cuts = np.cumsum([0, *splits[communicator.position]])
    parts = [_entry_bytes(array[start:stop]) for start, stop in itertools.pairwise(cuts)]
    received = communicator.all_to_all(WireSignature("alltoall"), parts)
    rows = [own[communicator.position] for own in splits]  # for an empty dimension the length does not determine them
    whole = np.concatenate(received).view(array.dtype).reshape(sum(rows), *array.shape[1:])
    return [whole, np.asarray(rows, np.int32)]


def _reducescatter_request(communicator: Communicator, array: Array, op: ReduceOp) -> Array:
    size = len(communicator.ranks)
    sent = sendable_array(array, op, size)
    (own,) = work.grouped_reducescatter([sent], sendable_op(array.dtype, op), None)(communicator)
    return restore_dtype(own, op, array.dtype, size)


def _entry_bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _arrays_or_zeros(request: NamedRequest, arrays: Sequence[Array] | None) -> Sequence[Array]:
    if arrays is not None:
        return arrays
    pairs = zip(request.shapes, request.dtypes, strict=True)
    return [np.zeros(shape, dtype_of(name)) for shape, name in pairs]


def _fusion_key(entry: NegotiatedRequests) -> tuple[Any, ...] | None:
    request = entry.any_request
    if request.kind is not CollectiveKind.ALLREDUCE or request.members or len(set(request.dtypes)) != 1:
        return None
    return (request.dtypes[0], request.op, request.prescale, request.postscale, request.device)


def _request_bytes(request: NamedRequest) -> int:
    pairs = zip(request.shapes, request.dtypes, strict=True)
    return sum(math.prod(shape) * dtype_of(name).itemsize for shape, name in pairs)


# For each dtype, one that the ring supports and that can represent its sums.
WIDER: Final = {
    "int8": "int32",
    "int16": "int32",
    "uint16": "int32",
    "uint32": "int64",
    "uint8": "int32",
    "bool": "int32",
}
# For averages, whose sums may overflow the types that the ring supports.
_WIDER_FOR_AVERAGES: Final = {**WIDER, "int32": "int64"}

COMPLEX: Final = {"complex64": "float32", "complex128": "float64"}


def sendable_op(dtype: np.dtype[Any], op: ReduceOp) -> ReduceOp:
    """Return the operation that the communicator runs for `op`: for averages of integers a sum, divided afterwards."""
    return Sum if op is Average and dtype.kind in "iub" else op


def is_sent_unconverted(dtype: np.dtype[Any], op: ReduceOp) -> bool:
    """Return whether arrays of `dtype` are reduced with `op` without a conversion by `sendable_array`."""
    return name_of(dtype) in CODES and not (op is Average and dtype.kind in "iub")


def sendable_array(array: Array, op: ReduceOp, size: int) -> Array:
    """Return `array` converted to a dtype that ranks can reduce with `op`; may have an additional last dimension.

    `size`: number of ranks.
    """
    name = name_of(array.dtype)
    if name in COMPLEX:
        return np.asarray(array, order="C")[..., None].view(COMPLEX[name])
    if op is Average and name == "int64":  # no wider type, but quotients and remainders do not overflow
        return np.stack([array // size, array % size], axis=-1)
    wider = _WIDER_FOR_AVERAGES if op is Average else {} if name in CODES else WIDER
    return array.astype(dtype_of(wider.get(name, name)), copy=False)


def restore_dtype(reduced: Array, op: ReduceOp, dtype: np.dtype[Any], size: int) -> Array:
    """Convert the reduction of `sendable_array` results back to `dtype`, and divide averages of integers.

    `size`: number of ranks.
    """
    if dtype.kind == "c":
        return np.asarray(np.asarray(reduced, order="C").view(dtype)[..., 0])
    if op is not Average or dtype.kind not in "iub":
        return reduced.astype(dtype, copy=False)
    if name_of(dtype) == "int64":
        quotient, remainder = reduced[..., 0], reduced[..., 1]
        whole, rest = quotient + remainder // size, remainder % size
    else:
        whole, rest = reduced // size, reduced % size
    # Arithmetic turns an array without dimensions into a number.
    return np.asarray(whole + ((whole < 0) & (rest != 0))).astype(dtype, copy=False)
