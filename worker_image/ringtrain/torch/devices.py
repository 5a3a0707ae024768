"""Reductions where tensors lie, through a process group of torch.distributed that nobody else uses.

What ranks ask for is agreed on as ever; only the tensors of a reduction take this way. The library adds up in an
order of its own, so results have not the bits of a fold in rank order. See
docs/decisions/0041-reductions-on-devices.md.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

from ringtrain.collectives.tensors import Array
from ringtrain.communicators.base import Communicator
from ringtrain.communicators.foreign import ForeignCalls
from ringtrain.errors import ConfigurationError
from ringtrain.negotiation.agreement import Agreed
from ringtrain.negotiation.execution import Carrier
from ringtrain.negotiation.request import CollectiveKind, Request
from ringtrain.process_groups.context import current
from ringtrain.process_groups.process_sets import ProcessSet, number_of
from ringtrain.torch.bridge import to_arrays, to_tensor
from ringtrain.torch.device_store import RoundsStore
from ringtrain.transport.address import split_address
from ringtrain.wire.signature import Signature

_OPS: Final = {
    "Sum": dist.ReduceOp.SUM,
    "Average": dist.ReduceOp.SUM,
    "Min": dist.ReduceOp.MIN,
    "Max": dist.ReduceOp.MAX,
    "Product": dist.ReduceOp.PRODUCT,
}
# Others go as arrays: whether they can be added up, and how, differs between libraries.
_DTYPES: Final = {"float16", "bfloat16", "float32", "float64"}
_HALVES: Final = {"float16", "bfloat16"}
_ON_HOST: Final = "cpu through torch.distributed"


def device_of(tensors: Sequence[torch.Tensor]) -> str:
    """Where `tensors` are reduced, for the ranks to agree on."""
    kind = tensors[0].device.type if tensors else "cpu"
    return _ON_HOST if kind == "cpu" and current().config.transport == "torch" else kind


def source_of(tensors: Sequence[torch.Tensor], kind: CollectiveKind, process_set: ProcessSet) -> Any:
    """Return what gives the arrays of `tensors`, or takes their reduction to where they lie."""
    if kind is not CollectiveKind.ALLREDUCE or current().config.transport != "torch":
        return to_arrays(tensors)
    return DeviceTensors(tensors, process_set)


class DeviceTensors:
    """The tensors of one submission. `target`: where a bucket's result goes, if that matters."""

    def __init__(self, tensors: Sequence[torch.Tensor], process_set: ProcessSet) -> None:
        self.tensors = [tensor.detach() for tensor in tensors]
        self.target: Array | None = None
        self._groups = current().attached(_Groups, _Groups)
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

    def reduce(
        self, communicator: Communicator, batch: Sequence[Agreed], tensors: Sequence[Carrier]
    ) -> list[Any] | None:
        request = batch[0].any_request
        if len(communicator.ranks) == 1 or request.op not in _OPS or not set(request.dtypes) <= _DTYPES:
            return None
        given = [one for one in tensors if isinstance(one, DeviceTensors)]
        if len(set(request.dtypes)) > 1:
            return None
        for one in given:
            one.wait_ready()
        group = self._groups.of(self._world.foreign_calls, self._number, communicator, self.device)
        with torch.no_grad():
            flat = _flat([tensor for one in given for tensor in one.tensors], self.device)
            wide = flat.float() if request.dtypes[0] in _HALVES else flat
            buffer = wide.mul(request.prescale) if request.prescale != 1.0 else wide
            group.all_reduce(buffer, _OPS[request.op])
            factor = request.postscale / (len(communicator.ranks) if request.op == "Average" else 1)
            reduced = (buffer.mul_(factor) if factor != 1.0 else buffer).to(flat.dtype)
            return _results(request, reduced, given)

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
                result.record_stream(self._stream)


class _Groups:
    """The process groups of a world, by the number of the process set."""

    def __init__(self) -> None:
        self._groups: dict[int, _Group] = {}
        self._lock = threading.Lock()

    def of(self, calls: Any, number: int, communicator: Communicator, device: torch.device) -> _Group:
        """Return that of a set; with its first tensors it is made, which is collective."""
        with self._lock:
            found = self._groups.get(number)
        if found is None:
            found = _Group(calls(number), communicator, device)
            with self._lock:
                self._groups[number] = found
        return found


class _Group:
    """A process group of our own. It is given up with its world, and never used after a failure."""

    def __init__(self, calls: ForeignCalls, communicator: Communicator, device: torch.device) -> None:
        self._calls, self._device = calls, device
        self._store = RoundsStore()
        self._made: Any = None
        outcome: list[str] = []

        def make() -> None:
            try:
                self._made = _process_group(self._store, communicator, device, calls)
                outcome.append("")
            except Exception as error:
                outcome.append(f"{type(error).__name__}: {error}")

        maker = threading.Thread(target=make, name="ringtrain-device-group", daemon=True)
        maker.start()
        if reason := self._store.exchange(communicator, maker, outcome, calls.stall_timeout_s):
            raise ConfigurationError(
                f"RINGTRAIN_TRANSPORT is torch, but torch.distributed has no process group for {device.type}: "
                f"{reason}; set it to auto"
            )

    def all_reduce(self, buffer: torch.Tensor, op: Any) -> None:
        """Reduce `buffer` in place; on return it is done. Raises PeerLost."""
        options = dist.AllreduceOptions()
        options.reduceOp = op
        try:
            self._calls.run(
                Signature("device_allreduce"), lambda: _Work(self._made.allreduce([buffer], options), self._device)
            )
        except BaseException:
            self._made.abort()
            raise


class _Work:
    """A collective of the library. On a device it is done when the device has done it."""

    def __init__(self, work: Any, device: torch.device) -> None:
        self._work = work
        self._event: Any = None
        if device.type != "cpu":
            work.wait()  # has the present stream wait, not this thread
            self._event = torch.get_device_module(device).Event()
            self._event.record()

    def is_completed(self) -> bool:
        done: bool = self._work.is_completed() if self._event is None else self._event.query()
        return done

    def wait(self) -> None:
        """Raise what the library found."""
        if self._event is None:
            self._work.wait()


def _process_group(
    store: RoundsStore, communicator: Communicator, device: torch.device, calls: ForeignCalls
) -> Any:
    """Return the backend that torch.distributed has for the kind of device. Collective."""
    kind = dist.Backend.default_device_backend_map.get(device.type, device.type)
    size, position = len(communicator.ranks), communicator.position
    timeout = timedelta(seconds=2 * calls.stall_timeout_s)  # ours ends first
    if kind == "gloo":
        options = dist.ProcessGroupGloo._Options()
        options._timeout = timeout
        host = split_address(calls.address)[0]
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
        return dist.ProcessGroupGloo(store, position, size, options)
    if kind == "nccl" and dist.is_nccl_available():
        torch.cuda.set_device(device)
        chosen = dist.ProcessGroupNCCL.Options()
        chosen._timeout = timeout
        with _quiet_nccl():
            made = dist.ProcessGroupNCCL(store, position, size, chosen)
        made.allreduce([torch.zeros(1, device=device)]).wait()  # all that it asks the store for, it asks for now
        torch.cuda.current_stream(device).synchronize()
        return made
    raise ConfigurationError(f"{kind} is not in this build of PyTorch, or not known to ringtrain")


@contextlib.contextmanager
def _quiet_nccl() -> Iterator[None]:
    """Have a group that is made now not end this process when a peer is lost: our detector is the judge."""
    names = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "0"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _flat(tensors: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    return torch.cat([tensor.to(device).reshape(-1) for tensor in tensors])


def _results(request: Request, reduced: torch.Tensor, given: Sequence[DeviceTensors]) -> list[Any]:
    """Cut `reduced` for the entries of a batch. A bucket stays in one piece, in its target if it has one."""
    if request.members:
        if given[0].target is not None:
            to_tensor(given[0].target).copy_(reduced)
            return [[given[0].target]]
        given[0].hand_over([reduced])
        return [[reduced]]
    results, at = [], 0
    for one in given:
        own = []
        for tensor in one.tensors:
            own.append(reduced[at : at + tensor.numel()].clone().reshape(tensor.shape))
            at += tensor.numel()
        one.hand_over(own)
        results.append(own)
    return results
