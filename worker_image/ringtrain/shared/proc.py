"""Information about processes of this machine, from /proc."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# Shells, and coreutils' timeout, which forwards signals to its whole group.
_RUNNERS: Final = frozenset(
    {"ash", "bash", "busybox", "csh", "dash", "fish", "ksh", "ksh93", "mksh", "sh", "timeout", "zsh"}
)


@dataclass(frozen=True)
class ProcessView:
    """One process. `state`: letter as in ps. `started`: start time in ticks, by which a reused pid is recognized."""

    pid: int
    state: str
    parent: int
    session: int
    started: int


def process_view(pid: int) -> ProcessView | None:
    """Return the process with this pid; None if it has ended and was reaped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # pid (name) state parent group session …; the name may contain any character, including parentheses and blanks.
    fields = stat.rpartition(b")")[2].split()
    return ProcessView(pid, fields[0].decode(), int(fields[1]), int(fields[3]), int(fields[19]))


def living_processes() -> dict[int, ProcessView]:
    """Return all processes of this machine except zombies, by pid."""
    views = (process_view(int(name)) for name in os.listdir("/proc") if name.isdecimal())
    return {view.pid: view for view in views if view is not None and view.state not in "ZX"}


def handles_signal(pid: int, number: int) -> bool:
    """Return whether the process catches or ignores signal `number`, instead of being ended by it."""
    with suppress(OSError), open(f"/proc/{pid}/status") as status:
        masks = [line.split()[1] for line in status if line.startswith(("SigCgt:", "SigIgn:"))]
        return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)
    return False


def is_shell(pid: int) -> bool:
    """Return whether the process is a shell or a similar program, such as `timeout`, that runs other programs."""
    with suppress(OSError):
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")) in _RUNNERS
    return False
