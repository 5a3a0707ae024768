"""Finding and ending everything that a daemon started, whatever sessions and process groups it made.

A process group is not enough: prted makes itself a session of its own, and every rank gets a group of its own. But
all of them inherit the daemon's environment, in which a marker names it.
"""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

MARKER = "RINGTRAIN_MPI_DAEMON"
_LOOK_S = 0.05


def marked_processes(marker: str) -> list[int]:
    """Process ids of all living processes with `marker` in their environment."""
    wanted = f"{MARKER}={marker}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        # A process may end, or belong to another user, while it is looked at; a zombie's environment is empty.
        with suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def signal_marked(marker: str, number: int) -> int:
    """Send signal `number` to all processes of `marker`; returns how many there were."""
    pids = marked_processes(marker)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    return len(pids)


def end_marked(marker: str, grace_s: float, clock: Callable[[], float] = time.monotonic) -> None:
    """End all processes of `marker`: SIGTERM, and SIGKILL to those that are still there after `grace_s`."""
    deadline = clock() + grace_s
    signal_marked(marker, signal.SIGTERM)
    while marked_processes(marker) and clock() < deadline:
        time.sleep(_LOOK_S)
    # Repeated: a process may have forked between the look and the signal.
    while signal_marked(marker, signal.SIGKILL):
        time.sleep(_LOOK_S)
