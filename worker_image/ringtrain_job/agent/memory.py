"""How much memory this worker's container uses, may use, and whether the kernel has killed for it."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

_ROOT, _OWN, _VMSTAT = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"), Path("/proc/vmstat")


@dataclass(frozen=True)
class _GroupFiles:
    """Files of a memory group, and fields in them, of one version of cgroups."""

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
    """The group with the tightest limit of those that this process is in, or the machine where none has a limit.

    `root`, `own`: where groups are mounted, and the file that says which this process is in.
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
        """Bytes in use, without page cache that the kernel gives back first: Kubernetes' working set."""
        current = _cgroup_number(self._tightest / self._names.used) if self._tightest != Path() else None
        if current is None:
            memory = psutil.virtual_memory()
            return int(memory.total - memory.available)
        return max(0, current - (_cgroup_field(self._tightest / "memory.stat", self._names.cache) or 0))

    def peak(self) -> int | None:
        """The most bytes that were ever in use, cache among them; None: the kernel does not keep that."""
        return _cgroup_number(self._tightest / self._names.peak) if self._tightest != Path() else None

    def kills(self) -> int:
        """How many processes the kernel has killed for want of memory, in this container or on this machine."""
        for names in (_V1, _V2):
            found = _cgroup_field(self._own / names.events, "oom_kill") if self._own != Path() else None
            if found is not None:
                return found
        return _cgroup_field(_VMSTAT, "oom_kill") or 0


def _memory_cgroups(root: Path, own: Path) -> Iterator[tuple[_GroupFiles, Path]]:
    """The memory groups of this process, its own one first, then those around it."""
    for line in _cgroup_lines(own):
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            yield from ((_V1, folder) for folder in _cgroups_upwards(root / "memory", path))
        elif not controllers:
            yield from ((_V2, folder) for folder in _cgroups_upwards(root, path))


def _cgroups_upwards(mount: Path, path: str) -> Iterator[Path]:
    # In a container the path may be that of the node, while its own group is mounted as the root of all.
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
    """The number in a file; None: none is there, or no limit ("max")."""
    text = "".join(_cgroup_lines(path)[:1])
    return int(text) if text.isdecimal() else None


def _cgroup_field(path: Path, name: str) -> int | None:
    for line in _cgroup_lines(path):
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdecimal():
            return int(value)
    return None
