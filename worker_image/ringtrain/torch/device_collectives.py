"""Collectives of a process group of torch.distributed, on tensors of one device: what each rank gets from them.

What only moves, moves as bytes, whatever its dtype.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Final

import torch
import torch.distributed as dist

from ringtrain._core.negotiation.agreement import NegotiatedRequests
from ringtrain._core.negotiation.request import CollectiveKind, NamedRequest, splits_of
from ringtrain._core.reduction.cuts import even_bounds
from ringtrain.torch.device_groups import TorchDeviceGroup

_OPS: Final = {
    "Sum": dist.ReduceOp.SUM,
    "Average": dist.ReduceOp.SUM,
    "Min": dist.ReduceOp.MIN,
    "Max": dist.ReduceOp.MAX,
    "Product": dist.ReduceOp.PRODUCT,
}
_FLOATS: Final = {"float16", "bfloat16", "float32", "float64"}
# Exact in any order. Averages of integers are rounded, others of them widened: that is done in host memory.
_INTEGERS: Final = {"int32", "int64"}


def can_carry_out(request: NamedRequest) -> bool:
    """Whether libraries do with `request` what is done with arrays. The same on all ranks."""
    if request.kind not in (CollectiveKind.ALLREDUCE, CollectiveKind.REDUCESCATTER):
        return True
    if request.op not in _OPS:
        return False
    is_plain = request.op != "Average" and request.prescale == request.postscale == 1.0
    # What Min and Max make of NaN depends on the library: gloo's have none that is not rank 0's.
    floats = set() if request.op in ("Min", "Max") else _FLOATS
    allowed = floats | _INTEGERS if is_plain else floats
    together = request.kind is CollectiveKind.ALLREDUCE  # its tensors are reduced as one
    return set(request.dtypes) <= allowed and (len(set(request.dtypes)) == 1 or not together)


def reduced_tensor(group: TorchDeviceGroup, flat: torch.Tensor, request: NamedRequest) -> torch.Tensor:
    """Return `flat` (1-d) reduced as `request` says. Halves are added up in float32, and rounded once."""
    wide = flat.float() if flat.dtype in (torch.float16, torch.bfloat16) else flat.clone()
    buffer = wide.mul_(request.prescale) if request.prescale != 1.0 else wide
    group.all_reduce(buffer, _OPS[request.op])
    factor = request.postscale / (group.size if request.op == "Average" else 1)
    return (buffer.mul_(factor) if factor != 1.0 else buffer).to(flat.dtype)


def carried_out_request(
    group: TorchDeviceGroup, agreed: NegotiatedRequests, tensors: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Return the results of anything but an allreduce, in the order of `tensors`; an alltoall's also has the
    number of rows from each rank (int32, on the host)."""
    requests = [agreed.requests[rank] for rank in group.ranks]
    request = requests[group.position]
    match request.kind:
        case CollectiveKind.BROADCAST:
            return [_broadcast(group, tensor, group.ranks.index(request.root)) for tensor in tensors]
        case CollectiveKind.ALLGATHER:
            rows = [[one.shapes[index][0] for one in requests] for index in range(len(tensors))]
            return [_all_gather(group, tensor, own) for tensor, own in zip(tensors, rows, strict=True)]
        case CollectiveKind.REDUCESCATTER:
            return [_reduce_scatter(group, tensor, request) for tensor in tensors]
        case _:
            return _all_to_all(group, tensors[0], splits_of(requests))


def _broadcast(group: TorchDeviceGroup, tensor: torch.Tensor, root: int) -> torch.Tensor:
    received = tensor.clone(memory_format=torch.contiguous_format)
    if received.numel():
        group.broadcast(_tensor_bytes(received), root)
    return received


def _all_gather(group: TorchDeviceGroup, tensor: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """`rows`: of each rank's tensor. What is shorter than the longest travels with padding."""
    row_bytes = _row_bytes(tensor)
    most = max(rows) * row_bytes
    if not most:
        return tensor.new_empty((sum(rows), *tensor.shape[1:]))
    own = _tensor_bytes(tensor)
    padded = own if len(own) == most else torch.cat([own, own.new_zeros(most - len(own))])
    gathered = own.new_empty(most * group.size)
    group.all_gather(gathered, padded)
    parts = [part[: count * row_bytes] for part, count in zip(gathered.split(most), rows, strict=True)]
    return torch.cat(parts).view(tensor.dtype).reshape(sum(rows), *tensor.shape[1:])


def _all_to_all(group: TorchDeviceGroup, tensor: torch.Tensor, splits: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """`splits`: of each rank, the rows for each rank."""
    row_bytes = _row_bytes(tensor)
    rows = [own[group.position] for own in splits]
    received = torch.empty(sum(rows) * row_bytes, dtype=torch.uint8, device=tensor.device)
    if row_bytes and any(itertools.chain.from_iterable(splits)):
        outgoing = [count * row_bytes for count in splits[group.position]]
        group.all_to_all(received, _tensor_bytes(tensor), [count * row_bytes for count in rows], outgoing)
    whole = received.view(tensor.dtype).reshape(sum(rows), *tensor.shape[1:])
    return [whole, torch.tensor(rows, dtype=torch.int32)]


def _reduce_scatter(group: TorchDeviceGroup, tensor: torch.Tensor, request: NamedRequest) -> torch.Tensor:
    """All is reduced everywhere: gloo has no reduce-scatter that ends when it is polled."""
    whole = reduced_tensor(group, tensor.reshape(-1), request) if tensor.numel() else tensor
    start, stop = even_bounds(len(tensor), group.size)[group.position :][:2]
    return whole.reshape(tensor.shape)[start:stop].clone()


def _tensor_bytes(tensor: torch.Tensor) -> torch.Tensor:
    whole = tensor.contiguous()
    # Of one element any stride counts as contiguous, and then has no view as bytes.
    return whole.as_strided((whole.numel(),), (1,)).view(torch.uint8)


def _row_bytes(tensor: torch.Tensor) -> int:
    return math.prod(tensor.shape[1:]) * tensor.element_size()
