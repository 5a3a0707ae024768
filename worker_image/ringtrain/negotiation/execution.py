"""Carry out what was agreed: one collective of the group, or several reductions fused into one."""

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from ringtrain.negotiation.agreement import Agreed
from ringtrain.negotiation.group import Array, Group
from ringtrain.negotiation.request import Kind, Request
from ringtrain.reduction.arithmetic import adasum, scaled
from ringtrain.wire.dtypes import dtype_of

# 64 MiB: what is fused is reduced together, and a handle of it is done when all of it is; a larger fusion only
# delays the first update.
FUSION_BYTES = 64 << 20

Result = list[Any]


def batches(agreed: Sequence[Agreed]) -> Iterator[list[Agreed]]:
    """Cut into runs that can share one collective, in order. Pure, so every rank cuts alike."""
    for fusible, run in groupby(agreed, key=_fusion_key):
        members = list(run)
        if fusible is None:
            yield from ([member] for member in members)
            continue
        batch: list[Agreed] = []
        size = 0
        for member in members:
            if batch and size + _bytes(member.any_request) > FUSION_BYTES:
                yield batch
                batch, size = [], 0
            batch.append(member)
            size += _bytes(member.any_request)
        yield batch


def run_batch(group: Group, batch: Sequence[Agreed], arrays: Sequence[Sequence[Array] | None]) -> list[Result]:
    """Return the results of each entry of a batch. `arrays`: this rank's tensors, None where it has joined."""
    request = batch[0].any_request
    if request.kind is not Kind.ALLREDUCE:
        return [_run_single(group, batch[0], arrays[0] or ())]
    given = [_given(entry.any_request, own) for entry, own in zip(batch, arrays, strict=True)]
    inputs = [scaled(array, request.prescale) for own in given for array in own]
    if request.op == "Adasum":
        outputs = [_adasum_of(group, array) for array in inputs]
    else:
        outputs = group.allreduce(inputs, request.op)
    finished = iter(scaled(array, request.postscale) for array in outputs)
    return [[next(finished) for _ in own] for own in given]


def _run_single(group: Group, agreed: Agreed, arrays: Sequence[Array]) -> Result:
    request = agreed.requests.get(group.rank, agreed.any_request)
    match request.kind:
        case Kind.ALLGATHER:
            totals = [sum(agreed.requests[r].shapes[i][0] for r in group.ranks) for i in range(len(arrays))]
            return [group.allgather(array, rows) for array, rows in zip(arrays, totals, strict=True)]
        case Kind.BROADCAST:
            return [group.broadcast(array, request.root) for array in arrays]
        case Kind.ALLTOALL:
            received, splits = group.alltoall(arrays[0], _splits(request, arrays[0], len(group.ranks)))
            return [received, np.asarray(splits, np.int32)]
        case Kind.REDUCESCATTER:
            reduced = (group.reducescatter(scaled(a, request.prescale), request.op) for a in arrays)
            return [scaled(array, request.postscale) for array in reduced]
    return []  # a barrier: the agreement itself was the meeting


def _adasum_of(group: Group, array: Array) -> Array:
    # Every rank gets every gradient and combines them alike: N times the bytes of a sum, in exchange for equal
    # bits.
    everyone = group.allgather(array.reshape(1, -1), len(group.ranks))
    return adasum([row.reshape(array.shape) for row in everyone])


def _splits(request: Request, array: Array, size: int) -> tuple[int, ...]:
    return request.splits if request.splits is not None else (len(array) // size,) * size


def _given(request: Request, arrays: Sequence[Array] | None) -> Sequence[Array]:
    if arrays is not None:
        return arrays
    pairs = zip(request.shapes, request.dtypes, strict=True)
    return [np.zeros(shape, dtype_of(name)) for shape, name in pairs]


def _fusion_key(entry: Agreed) -> tuple[Any, ...] | None:
    request = entry.any_request
    if request.kind is not Kind.ALLREDUCE or len(set(request.dtypes)) != 1:
        return None
    return (request.dtypes[0], request.op, request.prescale, request.postscale, request.device)


def _bytes(request: Request) -> int:
    pairs = zip(request.shapes, request.dtypes, strict=True)
    return sum(math.prod(shape) * dtype_of(name).itemsize for shape, name in pairs)
