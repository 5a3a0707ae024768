"""Collectives on the tensors' devices, through a process group of torch.distributed that only Ringtrain uses.

Ranks negotiate requests as usual; only the tensors use this way. The library sums in its own order, so results differ
in bits from a fold in rank order. See docs/decisions/0041-reductions-on-devices.md. The backend of torch.distributed is
a pure function of the request and of the available libraries. Collectives that only move data send bytes, for any
dtype.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist

from ringtrain import ProcessSet, global_process_set
from ringtrain.adapter import Array, attached, current_world
from ringtrain.adapter.devices import (
    CollectiveKind,
    Communicator,
    FusedRequestBatch,
    NamedRequest,
    SubmittedTensors,
    even_bounds,
    number_of,
)
from ringtrain_torch.bridge import to_arrays, to_tensor
from ringtrain_torch.device_groups import TorchDeviceGroup, TorchDeviceGroups


def device_of(tensors: Sequence[torch.Tensor], backend: str) -> str:
    """Return device type and backend of `tensors` as text that ranks can compare."""
    kind = tensors[0].device.type if tensors else "cpu"
    return f"{kind} through {backend}" if backend else kind


def source_of(tensors: Sequence[torch.Tensor], process_set: ProcessSet, backend: str) -> Any:
    """Return the source of a collective's arrays: if `backend` is not empty, the device tensors, otherwise a function
    that returns host arrays."""
    return TorchDeviceTensors(tensors, process_set, backend) if backend else to_arrays(tensors)


def backend_of(tensors: Sequence[torch.Tensor], process_set: ProcessSet = global_process_set) -> str:
    """Return the name of the backend of torch.distributed for `tensors` in `process_set`; empty for host memory."""
    if not tensors:
        return HOST
    config = current_world().config
    encrypts = config.trust.encrypt != "none" and config.encrypts_among(process_set.ranks or [])
    return _torch_backend_here(tensors[0].device.type, config.ways.transport, encrypts)


@functools.cache  # every submission calls this, and the check for a GPU calls the driver
def _torch_backend_here(device: str, transport: str, encrypts: bool) -> str:
    return torch_backend_for(device, transport, encrypts, TorchBackends.here())


class TorchDeviceTensors:
    """Tensors of one submission to a device collective. `backend`: backend of torch.distributed. `target`: memory for a
    bucket's result, if required."""

    def __init__(self, tensors: Sequence[torch.Tensor], process_set: ProcessSet, backend: str) -> None:
        self.tensors = [tensor.detach() for tensor in tensors]
        self.target: Array | None = None
        self._backend = backend
        self._groups = attached(TorchDeviceGroups)
        self._world, self._number = current_world(), number_of(process_set)
        self.device = self.tensors[0].device
        self.ready: Any = None
        self._streams: Any = None
        if self.device.type != "cpu":
            self._streams = torch.get_device_module(self.device)
            self._stream = self._streams.current_stream(self.device)
            self.ready = self._streams.Event()
            self.ready.record(self._stream)

    def __call__(self) -> Sequence[Array]:
        self.wait_ready()
        return to_arrays(self.tensors)()

    def carry_out(
        self, communicator: Communicator, batch: FusedRequestBatch, tensors: Sequence[SubmittedTensors]
    ) -> list[Any] | None:
        request = batch.request
        if len(communicator.ranks) == 1 or not can_carry_out(request):
            return None
        given = [one for one in tensors if isinstance(one, TorchDeviceTensors)]
        for one in given:
            one.wait_ready()
        group = self._groups.of(self._world, self._number, communicator, self.device, self._backend)
        if group is None:
            return None
        with group.stream(), torch.no_grad():
            if request.kind is CollectiveKind.ALLREDUCE:
                flat = _flat_tensors([tensor for one in given for tensor in one.tensors], self.device)
                return _device_results(request, reduced_tensor(group, flat, request), given)
            results = carried_out_request(group, batch, self.tensors)
            self.hand_over(results)
            return [results]

    def wait_ready(self) -> None:
        """Wait until the device has computed the tensors."""
        if self.ready is not None:
            self._streams.set_device(self.device)
            self.ready.synchronize()

    def hand_over(self, results: Sequence[torch.Tensor]) -> None:
        """Make results that the queue's thread computed usable on the stream of the thread that submitted them."""
        if self.ready is not None:
            self._streams.current_stream(self.device).synchronize()
            for result in results:
                if result.device == self.device:
                    result.record_stream(self._stream)


def _flat_tensors(tensors: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    return torch.cat([tensor.to(device).reshape(-1) for tensor in tensors])


def _device_results(request: NamedRequest, whole: torch.Tensor, given: Sequence[TorchDeviceTensors]) -> list[Any]:
    """Split `whole`, the result of a batch, into one result for each submission in `given`.

    A bucket is not split: it is copied to its target, if the bucket has one.
    """
    if request.members:
        if given[0].target is not None:
            to_tensor(given[0].target).copy_(whole)
            return [[given[0].target]]
        given[0].hand_over([whole])
        return [[whole]]
    results, at = [], 0
    for one in given:
        own = []
        for tensor in one.tensors:
            own.append(whole[at : at + tensor.numel()].clone().reshape(tensor.shape))
            at += tensor.numel()
        one.hand_over(own)
        results.append(own)
    return results


HOST: Final = ""  # no backend: tensors are sent through host memory


@dataclass(frozen=True)
class TorchBackends:
    """Backends of torch.distributed that are available in this process.

    `by_device`: the backend's name by device type, as torch.distributed maps them, including plugins (such as hccl).
    `nccl_usable`: whether this build of torch has NCCL, and a GPU exists.
    """

    by_device: Mapping[str, str]
    nccl_usable: bool

    @classmethod
    def here(cls) -> TorchBackends:
        nccl_usable = dist.is_available() and dist.is_nccl_available() and torch.cuda.is_available()
        return cls(dict(dist.Backend.default_device_backend_map), nccl_usable)


def torch_backend_for(device: str, transport: str, encrypts: bool, backends: TorchBackends) -> str:
    """Return the name of the backend for tensors on devices of type `device`; `HOST` for host memory.

    `transport`: see WorkerConfig. "torch" requests the backend of any device. For a device without a mapping in
    torch.distributed, the device's own name is used, and creating its group fails if there is no such backend. "auto"
    selects NCCL for CUDA tensors if it is usable, unless tensors must be encrypted (`encrypts`), which NCCL does not
    support, and host memory for all other devices.
    """
    if transport == "torch":
        return backends.by_device.get(device, device)
    if transport == "auto" and not encrypts and device == "cuda" and backends.nccl_usable:
        return backends.by_device.get(device, HOST)
    return HOST


_OPS: Final = {
    "Sum": dist.ReduceOp.SUM,
    "Average": dist.ReduceOp.SUM,
    "Min": dist.ReduceOp.MIN,
    "Max": dist.ReduceOp.MAX,
    "Product": dist.ReduceOp.PRODUCT,
}
_FLOATS: Final = {"float16", "bfloat16", "float32", "float64"}
# Exact in any order. Averages of integers are rounded, and other reductions of them are widened: these run in host
# memory.
_INTEGERS: Final = {"int32", "int64"}


def can_carry_out(request: NamedRequest) -> bool:
    """Return whether device libraries compute the same for `request` as Ringtrain's host code. Equal on all ranks."""
    if request.kind not in (CollectiveKind.ALLREDUCE, CollectiveKind.REDUCESCATTER):
        return True
    if request.op not in _OPS:
        return False
    is_plain = request.op != "Average" and request.prescale == request.postscale == 1.0
    # The results of Min and Max for NaN depend on the library: gloo ignores a NaN unless it is rank 0's.
    floats = set() if request.op in ("Min", "Max") else _FLOATS
    allowed = floats | _INTEGERS if is_plain else floats
    together = request.kind is CollectiveKind.ALLREDUCE  # its tensors are reduced as one
    return set(request.dtypes) <= allowed and (len(set(request.dtypes)) == 1 or not together)


def reduced_tensor(group: TorchDeviceGroup, flat: torch.Tensor, request: NamedRequest) -> torch.Tensor:
    """Return `flat` (1-d) reduced according to `request`. Half types are summed in float32 and rounded once."""
    wide = flat.float() if flat.dtype in (torch.float16, torch.bfloat16) else flat.clone()
    buffer = wide.mul_(request.prescale) if request.prescale != 1.0 else wide
    group.all_reduce(buffer, _OPS[request.op])
    factor = request.postscale / (group.size if request.op == "Average" else 1)
    return (buffer.mul_(factor) if factor != 1.0 else buffer).to(flat.dtype)


def carried_out_request(
    group: TorchDeviceGroup, batch: FusedRequestBatch, tensors: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Return the results of any collective except allreduce, in the order of `tensors`. An alltoall also returns the
    number of rows from each rank (int32, on the host)."""
    requests = batch.requests_of(group.ranks)
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
            return _all_to_all(group, tensors[0], batch.splits_of(group.ranks))


def _broadcast(group: TorchDeviceGroup, tensor: torch.Tensor, root: int) -> torch.Tensor:
    received = tensor.clone(memory_format=torch.contiguous_format)
    if received.numel():
        group.broadcast(_tensor_bytes(received), root)
    return received


def _all_gather(group: TorchDeviceGroup, tensor: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """Return the rows of all ranks' `tensor`. `rows`: number of rows on each rank. Shorter tensors are padded."""
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
    """Send `splits[sender][receiver]` rows of `tensor`; return the received rows and their number from each rank."""
    row_bytes = _row_bytes(tensor)
    rows = [own[group.position] for own in splits]
    received = torch.empty(sum(rows) * row_bytes, dtype=torch.uint8, device=tensor.device)
    if row_bytes and any(itertools.chain.from_iterable(splits)):
        outgoing = [count * row_bytes for count in splits[group.position]]
        group.all_to_all(received, _tensor_bytes(tensor), [count * row_bytes for count in rows], outgoing)
    whole = received.view(tensor.dtype).reshape(sum(rows), *tensor.shape[1:])
    return [whole, torch.tensor(rows, dtype=torch.int32)]


def _reduce_scatter(group: TorchDeviceGroup, tensor: torch.Tensor, request: NamedRequest) -> torch.Tensor:
    """Return this rank's rows of the reduced tensor. Reduces all rows: gloo's reduce-scatter cannot be polled."""
    whole = reduced_tensor(group, tensor.reshape(-1), request) if tensor.numel() else tensor
    start, stop = even_bounds(len(tensor), group.size)[group.position :][:2]
    return whole.reshape(tensor.shape)[start:stop].clone()


def _tensor_bytes(tensor: torch.Tensor) -> torch.Tensor:
    whole = tensor.contiguous()
    # With one element, any stride counts as contiguous, but then there is no view as bytes.
    return whole.as_strided((whole.numel(),), (1,)).view(torch.uint8)


def _row_bytes(tensor: torch.Tensor) -> int:
    return math.prod(tensor.shape[1:]) * tensor.element_size()
