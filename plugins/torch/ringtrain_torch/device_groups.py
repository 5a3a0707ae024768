"""Process groups of torch.distributed for Ringtrain's own use, which are closed with their process set or world."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import AllgatherOptions, AllToAllOptions, _DistributedBackendOptions

from ringtrain.adapter.devices import Communicator, ForeignCommunicatorCalls, ProcessGroupContext
from ringtrain.errors import ConfigurationError
from ringtrain.shared.address import split_address
from ringtrain_torch.device_store import TorchRoundsStore

log = logging.getLogger("ringtrain")

# Fraction of the timeout: ending a group waits for other ranks, which may be lost, or for a device that hangs.
_SHARE_TO_END: Final = 0.1


class TorchDeviceGroups:
    """Process groups of torch.distributed in one world, by process set and device."""

    def __init__(self) -> None:
        self._groups: dict[tuple[int, torch.device], TorchDeviceGroup | None] = {}
        self._calls: dict[int, ForeignCommunicatorCalls] = {}
        self._lock = threading.Lock()

    def of(
        self,
        world: ProcessGroupContext,
        number: int,
        communicator: Communicator,
        device: torch.device,
        backend: str,
    ) -> TorchDeviceGroup | None:
        """Return the process group of process set `number`. The first call for a device creates it: a collective.

        Returns None on all ranks if the group cannot be created, for example because two ranks share a GPU. If the user
        has requested the group, raises ConfigurationError on all ranks instead.
        """
        key = number, device
        with self._lock:
            if key in self._groups:
                return self._groups[key]
            if number not in self._calls:
                self._calls[number] = world.foreign_calls(number)
        asked = world.config.ways.transport == "torch"
        level = logging.DEBUG if communicator.position else logging.INFO if asked else logging.WARNING
        made = None
        try:
            made = TorchDeviceGroup(self._calls[number], communicator, device, backend, asked)
        except ConfigurationError as error:
            if asked:
                raise
            log.log(level, "%s; they are sent through host memory", error)
        else:
            why = "" if asked else ", chosen automatically (RINGTRAIN_TRANSPORT=host: use host memory)"
            log.log(
                level, "torch.distributed's %s reduces tensors on %s among %d ranks%s; it may sum in another order",
                backend, device.type, made.size, why,
            )  # fmt: skip
            world.run_with_set(number, made)  # after the queue, whose thread has ended when the group ends
        with self._lock:
            self._groups[key] = made
        return made

    def in_use(self) -> list[int]:
        """Return the numbers of the process sets that have a process group."""
        with self._lock:
            return sorted({number for (number, _), group in self._groups.items() if group and not group.ended})


class TorchDeviceGroup:
    """Process group that Ringtrain created. It is closed with its process set or world, and never used after a failure.

    Buffers of its collectives are 1-d and contiguous, on its kind of device; on return the collective is done. All
    raise PeerLost.
    """

    def __init__(
        self,
        calls: ForeignCommunicatorCalls,
        communicator: Communicator,
        device: torch.device,
        backend: str,
        asked: bool,
    ) -> None:
        """Create the group. Collective. `asked`: whether the user requested the group; otherwise the group must be
        ready within a shorter timeout."""
        self.ranks, self.position, self.size = communicator.ranks, communicator.position, len(communicator.ranks)
        self.device = device
        self._calls = calls
        self._streams = None if device.type == "cpu" else torch.get_device_module(device)
        self._stream = None if self._streams is None else self._streams.Stream(device)
        self._store = TorchRoundsStore()
        self._made: Any = None
        outcome: list[str] = []

        def make() -> None:
            try:
                self._made = _process_group(self._store, communicator, device, backend, calls)
                outcome.append("")
            except Exception as error:
                outcome.append(f"{type(error).__name__}: {error}")

        maker = threading.Thread(target=make, name="ringtrain-device-group", daemon=True)
        maker.start()
        within_s = calls.stall_timeout_s if asked else calls.timeout_s
        if reason := self._store.exchange(communicator, maker, outcome, within_s):
            way_out = "; RINGTRAIN_TRANSPORT is torch, set it to auto" if asked else ""
            raise ConfigurationError(
                f"torch.distributed has no process group of {backend} for {device.type} tensors: {reason}{way_out}"
            )

    def all_reduce(self, buffer: torch.Tensor, op: Any) -> None:
        """Reduce `buffer` in place."""
        options = dist.AllreduceOptions()
        options.reduceOp = op
        self._run("device_allreduce", lambda group: group.allreduce([buffer], options))

    def broadcast(self, buffer: torch.Tensor, root: int) -> None:
        """Overwrite `buffer` with the buffer of rank `root` of the group."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        self._run("device_broadcast", lambda group: group.broadcast([buffer], options))

    def all_gather(self, gathered: torch.Tensor, part: torch.Tensor) -> None:
        """Fill `gathered` with the `part` of each rank, in rank order. All parts have the same length."""
        self._run("device_allgather", lambda group: group._allgather_base(gathered, part, AllgatherOptions()))

    def all_to_all(self, received: torch.Tensor, sent: torch.Tensor, incoming: list[int], outgoing: list[int]) -> None:
        """Send `outgoing[p]` elements of `sent` to rank p of the group, and receive `incoming[p]` elements from each
        rank into `received`."""
        self._run(
            "device_alltoall",
            lambda group: group.alltoall_base(received, sent, incoming, outgoing, AllToAllOptions()),
        )

    @contextlib.contextmanager
    def stream(self) -> Iterator[None]:
        """Run this thread's device work in this context on a separate stream, so that it overlaps other work."""
        if self._streams is None:
            yield
            return
        self._streams.set_device(self.device)
        with self._streams.stream(self._stream):
            yield

    def synchronize(self) -> None:
        """Wait until the device has completed the work of `stream`."""
        if self._stream is not None:
            self._stream.synchronize()

    @property
    def ended(self) -> bool:
        """Whether the group was aborted or shut down."""
        return self._made is None

    def stop(self) -> None:
        """Do nothing: no further collective starts, and a running one ends by itself or when the world fails."""

    def wait_stopped(self, timeout_s: float) -> None:
        """Free the library's resources. Other ranks may be lost already if the world has failed."""
        self._end(abort=self._calls.failed)

    def in_flight(self) -> str:
        return ""

    def _run(self, what: str, call: Callable[[Any], Any]) -> None:
        try:
            self._calls.run(what, lambda: _TorchWork(call(self._made), self.device))
        except BaseException:
            self._end(abort=True)
            raise

    def _end(self, abort: bool) -> None:
        """Close the library's connections and release the device, without waiting for a lost peer if `abort`."""
        made, self._made = self._made, None
        if made is None:
            return
        seconds = _SHARE_TO_END * self._calls.timeout_s
        if abort or not _torch_call_within(seconds, made.shutdown):
            # Its destructor would wait for threads that wait for the lost peer; gloo's abort() does not end them.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
            _torch_call_within(seconds, made.abort)


class _TorchWork:
    """Collective in progress in torch's library. On a device, it is complete when the device has finished it."""

    def __init__(self, work: Any, device: torch.device) -> None:
        self._work = work
        self._event: Any = None
        if device.type != "cpu":
            work.wait()  # makes the current stream wait, not this thread
            self._event = torch.get_device_module(device).Event()
            self._event.record()

    def is_completed(self) -> bool:
        done: bool = self._work.is_completed() if self._event is None else self._event.query()
        return done

    def wait(self) -> None:
        """Raise the library's error."""
        if self._event is None:
            self._work.wait()


def _torch_call_within(seconds: float, function: Callable[[], Any]) -> bool:
    """Run `function` on a thread; return whether it returned within `seconds`. The library may wait for a lost peer."""

    def run() -> None:
        with contextlib.suppress(RuntimeError):  # repeats what it may have done already
            function()

    thread = threading.Thread(target=run, name="ringtrain-device-group-end", daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def _process_group(
    store: TorchRoundsStore,
    communicator: Communicator,
    device: torch.device,
    backend: str,
    calls: ForeignCommunicatorCalls,
) -> Any:
    """Return a connected process group of `backend`. Collective."""
    size, position = len(communicator.ranks), communicator.position
    timeout = timedelta(seconds=2 * calls.stall_timeout_s)  # ours ends first
    if backend == "gloo":
        options = dist.ProcessGroupGloo._Options()
        options._timeout = timeout
        host = split_address(calls.address)[0]
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
        return dist.ProcessGroupGloo(store, position, size, options)
    on_host = device.type == "cpu"
    if not on_host:
        torch.get_device_module(device).set_device(device)
    made = _torch_library_group(backend, store, communicator, timeout)
    made.allreduce([torch.zeros(1, device=device)]).wait()  # the library makes all its requests to the store now
    if not on_host:
        torch.get_device_module(device).synchronize(device)
    return made


def _torch_library_group(backend: str, store: TorchRoundsStore, communicator: Communicator, timeout: timedelta) -> Any:
    """Return a new process group of torch's NCCL or XCCL, or of a plugin such as hccl, chosen by `backend`."""
    place = store, communicator.position, len(communicator.ranks)
    if backend == "nccl" and dist.is_nccl_available():
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        with _quiet_nccl():
            return dist.ProcessGroupNCCL(*place, options)
    if backend == "xccl" and getattr(dist, "is_xccl_available", bool)():  # since torch 2.8
        return dist.ProcessGroupXCCL(*place, dist.ProcessGroupXCCL.Options())
    plugin = dist.Backend._plugins.get(backend.upper())
    if plugin is None:
        raise ConfigurationError(f"{backend} is not in this build of PyTorch, nor registered by a plugin")
    if not plugin.extended_api:
        return plugin.creator_fn(*place, timeout)
    given = _DistributedBackendOptions()
    given.store, given.group_rank, given.group_size = place
    given.timeout, given.group_id = timeout, "ringtrain"
    given.global_ranks_in_group = list(communicator.ranks)
    return plugin.creator_fn(given, None)


@contextlib.contextmanager
def _quiet_nccl() -> Iterator[None]:
    """Set NCCL's options for groups created here: do not end the process after a loss, do not block in a poll."""
    names = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING", "TORCH_NCCL_BLOCKING_WAIT")
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
