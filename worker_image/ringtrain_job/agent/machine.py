"""Sampling of CPU, memory, network, disk and GPU use of this worker, on one thread with limited CPU time."""

import importlib
import logging
import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from ringtrain.shared import contract
from ringtrain_job.logs.samples import GpuUse, MachineSample, RankUse, sample_in_bytes

_ROOT, _OWN, _VMSTAT = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"), Path("/proc/vmstat")


@dataclass(frozen=True)
class _GroupFiles:
    """Names of files and fields of a memory cgroup, for cgroup version 1 or 2."""

    limit: str
    used: str
    peak: str
    events: str
    cache: str


_V1 = _GroupFiles(
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "memory.max_usage_in_bytes",
    "memory.oom_control",
    "total_inactive_file",
)
_V2 = _GroupFiles("memory.max", "memory.current", "memory.peak", "memory.events", "inactive_file")


class MemoryCgroup:
    """Memory cgroup of this process with the lowest limit; the whole machine if none has a limit.

    `root`: mount point of cgroups. `own`: file that names the cgroups of this process.
    """

    def __init__(self, root: Path = _ROOT, own: Path = _OWN) -> None:
        self.limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self._names, self._tightest, self._own = _V2, Path(), Path()
        for names, folder in _memory_cgroups(root, own):
            self._own = folder if self._own == Path() else self._own
            limit = _cgroup_number(folder / names.limit)
            if limit is not None and limit < self.limit:
                self.limit, self._names, self._tightest = limit, names, folder

    def used(self) -> int:
        """Return the bytes of memory in use, without reclaimable page cache, like Kubernetes' working set."""
        current = _cgroup_number(self._tightest / self._names.used) if self._tightest != Path() else None
        if current is None:
            memory = psutil.virtual_memory()
            return int(memory.total - memory.available)
        return max(0, current - (_cgroup_field(self._tightest / "memory.stat", self._names.cache) or 0))

    def peak(self) -> int | None:
        """Return the highest number of bytes ever in use, page cache included; None if not recorded."""
        return _cgroup_number(self._tightest / self._names.peak) if self._tightest != Path() else None

    def kills(self) -> int:
        """Return how many processes the kernel's OOM killer has killed, in this container or on this machine."""
        for names in (_V1, _V2):
            found = _cgroup_field(self._own / names.events, "oom_kill") if self._own != Path() else None
            if found is not None:
                return found
        return _cgroup_field(_VMSTAT, "oom_kill") or 0


def _memory_cgroups(root: Path, own: Path) -> Iterator[tuple[_GroupFiles, Path]]:
    """Yield the memory cgroups that contain this process, innermost first, each with its file names."""
    for line in _cgroup_lines(own):
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            yield from ((_V1, folder) for folder in _cgroups_upwards(root / "memory", path))
        elif not controllers:
            yield from ((_V2, folder) for folder in _cgroups_upwards(root, path))


def _cgroups_upwards(mount: Path, path: str) -> Iterator[Path]:
    # In a container the path may be that of the node, while the container's own cgroup is mounted as the root.
    folder = mount / path.strip("/")
    folder = folder if folder.is_dir() else mount
    yield folder
    while folder != mount and folder != folder.parent:
        folder = folder.parent
        yield folder


def _cgroup_lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _cgroup_number(path: Path) -> int | None:
    """Return the number in the file `path`; None if the file is missing or says "max"."""
    text = "".join(_cgroup_lines(path)[:1])
    return int(text) if text.isdecimal() else None


def _cgroup_field(path: Path, name: str) -> int | None:
    for line in _cgroup_lines(path):
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdecimal():
            return int(value)
    return None


class Gpus:
    """GPUs of this container, read by NVML; empty if the driver or the package pynvml is missing."""

    def __init__(self) -> None:
        self._library: Any = None
        self._devices: list[Any] | None = None

    def read(self) -> tuple[GpuUse, ...]:
        """Return the use of each GPU. The first call may take a second; after a failure, the result is always empty."""
        try:
            if self._devices is None:
                self._devices = self._find()
            return tuple(self._use(device) for device in self._devices)
        except Exception:  # pynvml's errors have no common class if its import fails
            self._devices = []
            return ()

    def _find(self) -> list[Any]:
        self._library = importlib.import_module("pynvml")
        self._library.nvmlInit()
        count = self._library.nvmlDeviceGetCount()
        return [self._library.nvmlDeviceGetHandleByIndex(index) for index in range(count)]

    def _use(self, device: Any) -> GpuUse:
        memory = self._library.nvmlDeviceGetMemoryInfo(device)
        busy = self._library.nvmlDeviceGetUtilizationRates(device).gpu / 100
        return GpuUse(busy, memory.used, memory.total)


log = logging.getLogger(__name__)

# Every second in the first minute, then at growing intervals: a short run is visible, and a long one does not fill the
# disk.
_SHORTEST_S, _LONGEST_S, _SLOWER = 1.0, 10.0, 60.0
# A sample is followed by a pause of this multiple of its processor time: at most 0.4 % of a core.
_REST = 250
# Memory use of the last sample, as a fraction of the limit, from which an uncounted kill is attributed to memory.
_NEARLY_ALL = 0.9
_PRESSURE = Path("/proc/pressure/io")


@dataclass(frozen=True)
class _Counters:
    """Cumulative counters at one time: network bytes, seconds of waiting for disks, CPU seconds by process."""

    at: float
    received: int
    sent: int
    waited: float | None
    cpu: Mapping[int, float]


class MachineSampler:
    """Sampler of this worker's resource use. `ranks()` returns the PID of each running rank. Thread-safe."""

    def __init__(self, worker: int, ranks: Callable[[], Mapping[int, int]], memory: MemoryCgroup | None = None) -> None:
        self._worker = worker
        self._ranks = ranks
        self._memory = memory or MemoryCgroup()
        self._gpus = Gpus()
        self._kills = self._memory.kills()
        self._lock = threading.Lock()
        self._before: _Counters | None = None
        self._last: MachineSample | None = None

    def take_sample(self) -> MachineSample | None:
        """Return the use since the previous call; None if no rank is running, or at the first call."""
        pids = self._ranks()
        if not pids:
            return None
        trees = _rank_process_trees(pids)
        network = [found for name, found in psutil.net_io_counters(pernic=True).items() if name != "lo"]
        now = _Counters(
            at=time.monotonic(),
            received=sum(found.bytes_recv for found in network),
            sent=sum(found.bytes_sent for found in network),
            waited=_disk_wait_s(),
            cpu={pid: cpu for tree in trees.values() for pid, (cpu, _) in tree.items()},
        )
        before, self._before = self._before, now
        if before is None or now.at <= before.at:
            return None
        sample = self._sample(before, now, trees)
        self.note(sample)
        return sample

    def note(self, sample: MachineSample) -> None:
        """Store `sample`, so that `end_cause` can use it."""
        with self._lock:
            self._last = sample

    def end_cause(self, rank: int, code: int) -> str:
        """Return a sentence if a lack of memory explains that `rank` ended with `code` (negative for a signal);
        otherwise "".

        The kernel may have killed a child process of the rank, such as a loader, without which the rank then failed.
        """
        kills, limit = self._memory.kills(), self._memory.limit
        with self._lock:
            last, counted = self._last, kills > self._kills
            if counted:  # one kill explains one rank; kills of child processes are all attributed to it
                self._kills = self._kills + 1 if code == -signal.SIGKILL else kills
        used = last.memory if last else 0.0
        if not counted and (code != -signal.SIGKILL or used < _NEARLY_ALL * limit):
            return ""
        used = min(limit, max(used, self._memory.peak() or 0)) if counted else used
        own = last.ranks.get(rank) if last else None
        of_rank = f", {sample_in_bytes(own.rss)} of it the rank's when last seen" if own else ""
        if code == -signal.SIGKILL:
            by = f"; {contract.KILLED_FOR_MEMORY}" if counted else ""
            return f"rank {rank} was killed by SIGKILL: memory {_share_of(used, limit)}{of_rank}{by}"
        how = f"was killed by signal {-code}" if code < 0 else f"exited with {code}"
        return f"rank {rank} {how} after the kernel had killed a process for lack of memory: {_share_of(used, limit)}"

    def _sample(
        self, before: _Counters, now: _Counters, trees: Mapping[int, dict[int, tuple[float, int]]]
    ) -> MachineSample:
        seconds = now.at - before.at

        def use(tree: dict[int, tuple[float, int]]) -> RankUse:
            used = sum(max(0.0, cpu - before.cpu.get(pid, 0.0)) for pid, (cpu, _) in tree.items())
            return RankUse(round(used / seconds, 3), sum(rss for _, rss in tree.values()))

        waited = None if now.waited is None or before.waited is None else (now.waited - before.waited) / seconds
        return MachineSample(
            worker=self._worker,
            time=round(time.time(), 2),
            memory=self._memory.used(),
            limit=self._memory.limit,
            received=round(max(0, now.received - before.received) / seconds),
            sent=round(max(0, now.sent - before.sent) / seconds),
            disk_wait=None if waited is None else round(min(1.0, max(0.0, waited)), 3),
            ranks={rank: use(tree) for rank, tree in trees.items() if tree},
            gpus=self._gpus.read(),
        )


class MachineThread:
    """Thread that takes samples of `machine` and passes them to `tell`, until it is closed."""

    def __init__(self, machine: MachineSampler, tell: Callable[[MachineSample], None]) -> None:
        self._machine = machine
        self._tell = tell
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ringtrain-machine", daemon=True)

    def start(self) -> None:
        """Start sampling."""
        self._thread.start()

    def close(self) -> None:
        """Stop sampling."""
        self._closed.set()

    def _run(self) -> None:
        began, pause = time.monotonic(), 0.0
        while not self._closed.wait(pause):
            spent = time.thread_time()
            try:
                sample = self._machine.take_sample()
            except Exception as exc:  # a sandbox's /proc may be incomplete; training must not fail for this
                log.info("stopped sampling the ranks' resource use: %r", exc)
                return
            if sample is not None:
                self._tell(sample)
            pause = self.pause_after(time.thread_time() - spent, time.monotonic() - began)

    @staticmethod
    def pause_after(cost_s: float, running_s: float) -> float:
        """Return the seconds until the next sample. `cost_s`: CPU time of the last sample. `running_s`: age of the
        thread."""
        return max(min(_LONGEST_S, max(_SHORTEST_S, running_s / _SLOWER)), _REST * cost_s)


def _rank_process_trees(pids: Mapping[int, int]) -> dict[int, dict[int, tuple[float, int]]]:
    """Return CPU seconds and resident bytes by PID, for each rank's process and its descendants."""
    found: dict[int, dict[int, tuple[float, int]]] = {rank: {} for rank in pids}
    every, children = {}, defaultdict(list)
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has just ended
            every[process.pid] = process
            children[process.ppid()].append(process.pid)
    for rank, root in pids.items():
        for pid in _process_tree(root, children):
            with suppress(psutil.Error, KeyError):
                if (used := _process_use(every[pid]))[1]:  # a process that has ended has no memory
                    found[rank][pid] = used
    return found


def _process_tree(root: int, children: Mapping[int, Sequence[int]]) -> Iterator[int]:
    yield root
    for pid in children.get(root, ()):
        yield from _process_tree(pid, children)


def _process_use(process: psutil.Process) -> tuple[float, int]:
    with process.oneshot():
        times = process.cpu_times()
        return times.user + times.system, process.memory_info().rss


def _disk_wait_s() -> float | None:
    """Return the seconds since boot in which a task of this machine waited for a disk; None if unknown."""
    try:
        first = _PRESSURE.read_text().splitlines()[0]
        return int(first.rpartition("total=")[2]) / 1e6
    except (OSError, ValueError, IndexError):  # a kernel without pressure stall information
        return None


def _share_of(used: float, limit: float) -> str:
    """Return text such as "7.9 of 8.0 GiB" for `used` and `limit` bytes."""
    (number, unit), whole = sample_in_bytes(used).split(), sample_in_bytes(limit)
    return f"{number} of {whole}" if whole.endswith(unit) else f"{number} {unit} of {whole}"
