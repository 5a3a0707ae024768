"""Collectives where tensors lie, through a process group of torch.distributed that nobody else uses.

What ranks ask for is agreed on as ever; only the tensors take this way. The library adds up in an order of its
own, so results have not the bits of a fold in rank order. See docs/decisions/0041-reductions-on-devices.md.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from ringtrain._core.communicators.base import Communicator
from ringtrain._core.negotiation.execution import FusedRequestBatch, SubmittedTensors
from ringtrain._core.negotiation.request import CollectiveKind, NamedRequest
from ringtrain._core.process_groups.context import current
from ringtrain._core.process_groups.process_sets import ProcessSet, global_process_set, number_of
from ringtrain._core.process_groups.tensors import Array
from ringtrain.torch.bridge import to_arrays, to_tensor
from ringtrain.torch.device_choice import HOST, TorchBackends, backend_for
from ringtrain.torch.device_collectives import can_carry_out, carried_out_request, reduced_tensor
from ringtrain.torch.device_groups import TorchDeviceGroups


def device_of(tensors: Sequence[torch.Tensor], backend: str) -> str:
    """Where `tensors` are exchanged, for the ranks to agree on: the kind of device, and the backend if any."""
    kind = tensors[0].device.type if tensors else "cpu"
    return f"{kind} through {backend}" if backend else kind


def source_of(tensors: Sequence[torch.Tensor], process_set: ProcessSet, backend: str) -> Any:
    """Return what gives the arrays of `tensors`, or takes their collective to where they lie."""
    return TorchDeviceTensors(tensors, process_set, backend) if backend else to_arrays(tensors)


def backend_of(tensors: Sequence[torch.Tensor], process_set: ProcessSet = global_process_set) -> str:
    """The name of the backend of torch.distributed that `tensors` go through in `process_set`; empty for host
    memory."""
    if not tensors:
        return HOST
    config = current().config
    encrypts = config.encrypt != "none" and config.encrypts_among(process_set.ranks or [])
    return _backend_here(tensors[0].device.type, config.transport, encrypts)


@functools.cache  # every submission asks, and whether there is a GPU costs a call to the driver
def _backend_here(device: str, transport: str, encrypts: bool) -> str:
    return backend_for(device, transport, encrypts, TorchBackends.here())


class TorchDeviceTensors:
    """The tensors of one submission. `backend`: of torch.distributed. `target`: where a bucket's result goes, if
    that matters."""

    def __init__(self, tensors: Sequence[torch.Tensor], process_set: ProcessSet, backend: str) -> None:
        self.tensors = [tensor.detach() for tensor in tensors]
        self.target: Array | None = None
        self._backend = backend
        self._groups = current().attached(TorchDeviceGroups, TorchDeviceGroups)
        self._world, self._number = current(), number_of(process_set)
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
            results = carried_out_request(group, batch.entries[0], self.tensors)
            self.hand_over(results)
            return [results]

    def wait_ready(self) -> None:
        """Return when the device has made the tensors."""
        if self.ready is not None:
            self._streams.set_device(self.device)
            self.ready.synchronize()

    def hand_over(self, results: Sequence[torch.Tensor]) -> None:
        """Have the results of the queue's thread used on the stream of the thread that has submitted."""
        if self.ready is not None:
            self._streams.current_stream(self.device).synchronize()
            for result in results:
                if result.device == self.device:
                    result.record_stream(self._stream)


def _flat_tensors(tensors: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    return torch.cat([tensor.to(device).reshape(-1) for tensor in tensors])


def _device_results(request: NamedRequest, whole: torch.Tensor, given: Sequence[TorchDeviceTensors]) -> list[Any]:
    """Cut `whole` for the entries of a batch. A bucket stays in one piece, in its target if it has one."""
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
