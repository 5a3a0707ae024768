"""Memory use and limit of this worker's container, and the number of its processes that the OOM killer has killed."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

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
