"""Process groups of torch.distributed for Ringtrain alone: created, watched, and ended with their set or world."""

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
    """Process groups of a world, by the number of the process set and this rank's device."""

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
        """Return the group of a set. The first call for a device creates it, which is collective.

        None, on all ranks, if no user has requested it and it cannot be created, for example because two ranks share a
        GPU. Raises ConfigurationError, on all ranks, if it was requested.
        """
        key = number, device
        with self._lock:
            if key in self._groups:
                return self._groups[key]
            if number not in self._calls:
                self._calls[number] = world.foreign_calls(number)
        made = self._make(world, number, communicator, device, backend)
        with self._lock:
            self._groups[key] = made
        return made

    def _make(
        self,
        world: ProcessGroupContext,
        number: int,
        communicator: Communicator,
        device: torch.device,
        backend: str,
    ) -> TorchDeviceGroup | None:
        asked = world.config.ways.transport == "torch"
        level = logging.DEBUG if communicator.position else logging.INFO if asked else logging.WARNING
        try:
            made = TorchDeviceGroup(self._calls[number], communicator, device, backend, asked)
        except ConfigurationError as error:
            if asked:
                raise
            log.log(level, "%s; they travel through host memory", error)
            return None
        why = "" if asked else ", chosen by itself (RINGTRAIN_TRANSPORT=host: through host memory)"
        log.log(
            level, "tensors on %s go through torch.distributed's %s among %d ranks%s; sums have its own order",
            device.type, backend, made.size, why,
        )  # fmt: skip
        world.run_with_set(number, made)  # after the queue, whose thread has ended when the group ends
        return made

    def in_use(self) -> list[int]:
        """Return the sets that have a process group."""
        with self._lock:
            return sorted({number for (number, _), group in self._groups.items() if group and not group.ended})


class TorchDeviceGroup:
    """Process group that Ringtrain has created. It ends with its set or world, and is never used after a failure.

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
        """Create the group. Collective. `asked`: whether a user requested it; otherwise it must be ready within the
        shorter timeout."""
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
        """Overwrite `buffer` with the buffer of position `root`."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        self._run("device_broadcast", lambda group: group.broadcast([buffer], options))

    def all_gather(self, gathered: torch.Tensor, part: torch.Tensor) -> None:
        """Fill `gathered` with the `part` of each position; all parts have the same length."""
        self._run("device_allgather", lambda group: group._allgather_base(gathered, part, AllgatherOptions()))

    def all_to_all(self, received: torch.Tensor, sent: torch.Tensor, incoming: list[int], outgoing: list[int]) -> None:
        """Send `outgoing[p]` elements of `sent` to position p, and receive `incoming[p]` elements of each into
        `received`."""
        self._run(
            "device_alltoall",
            lambda group: group.alltoall_base(received, sent, incoming, outgoing, AllToAllOptions()),
        )

    @contextlib.contextmanager
    def stream(self) -> Iterator[None]:
        """Run this thread's device work on a separate stream, concurrently with the work of others."""
        if self._streams is None:
            yield
            return
        self._streams.set_device(self.device)
        with self._streams.stream(self._stream):
            yield

    def synchronize(self) -> None:
        """Wait until the device has completed the work begun on `stream`."""
        if self._stream is not None:
            self._stream.synchronize()

    @property
    def ended(self) -> bool:
        """Whether the group was aborted or shut down."""
        return self._made is None

    def stop(self) -> None:
        """Do nothing: the queue starts no further collective, and a running one ends itself or by the world's
        failure."""

    def wait_stopped(self, timeout_s: float) -> None:
        """Free the library's resources. All ranks of a removed set are present; those of a world that was left may not
        be."""
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
        """Make the library close its connections and release the device, so that nothing waits for a lost peer."""
        made, self._made = self._made, None
        if made is None:
            return
        seconds = _SHARE_TO_END * self._calls.timeout_s
        if abort or not _torch_call_within(seconds, made.shutdown):
            # Its destructor would wait for threads that wait for the lost peer; gloo's abort() does not end them.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
            _torch_call_within(seconds, made.abort)


class _TorchWork:
    """A collective of the library. On a device it is done when the device has completed it."""

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
    """Return whether `function` has returned in time: the library may wait for a lost peer."""

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
    """Return the group of NCCL, of XCCL, or of a plugin such as hccl, by its name."""
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
    """Configure a group that is created now: it must neither end this process when a peer is lost, nor block a thread
    that polls it. Our detector decides."""
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
