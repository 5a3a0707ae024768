"""Orderly stop of a rank: SIGTERM to the right processes, a grace period, then SIGKILL.

1. SIGTERM is sent once to the topmost processes of the rank that catch or ignore it. A shell is skipped in favour of
   its children: `bash run.sh` would end at once, and the rank with it. Any other process that would end by SIGTERM but
   has such a process below it gets the signal, too. Descendants of a process that handles the signal (loader workers)
   are left alone until it has ended, and so are its siblings (`tee`). If no process handles SIGTERM, all get it.
2. The rank has ended when its first process and all processes that got the signal have ended, or after its grace
   period.
3. Then the remaining processes get SIGTERM, and SIGKILL a second later.
"""

import logging
import os
import signal
import time
from collections import defaultdict
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Final

from ringtrain.shared.processes import ProcessView, handles_signal, is_shell, living_processes, process_view

log = logging.getLogger(__name__)

# Seconds between SIGTERM and SIGKILL for remaining processes, to remove their files. The end of a container grants
# none.
LEFT_S: Final = 1.0


class RankStop:
    """Stop of one rank and all its processes. Not thread-safe."""

    def __init__(self, pid: int) -> None:
        """Prepare to stop the rank whose first process, a session leader, is `pid`."""
        self._pid = pid
        first = process_view(pid)
        # Processes of the rank at the last look.
        self._seen = {pid: first} if first else {}
        self._got: set[int] = set()
        self._grace_ends: float | None = None
        self._kill_at: float | None = None
        # Signals that were sent from here.
        self.sent: frozenset[int] = frozenset()

    def request(self, grace_s: float) -> None:
        """Send SIGTERM, and SIGKILL after `grace_s`. Repeated calls have no effect."""
        if self._grace_ends is None:
            self._grace_ends = time.monotonic() + grace_s
            self.advance()

    def kill(self) -> None:
        """Kill all processes of the rank now."""
        self._grace_ends = self._kill_at = time.monotonic()
        self.advance()

    @property
    def is_requested(self) -> bool:
        """Whether `request` or `kill` was called."""
        return self._grace_ends is not None

    def advance(self, table: Mapping[int, ProcessView] | None = None) -> bool:
        """Execute due actions; return whether nothing is left to wait for. `table`: all processes of this machine."""
        if self._grace_ends is None:
            return True
        before, here = self._seen, self._find(living_processes() if table is None else table)
        if self._kill_at is None:
            self._signal_processes(here)
            # Workers of a loader that has ended would hold its pipe open for seconds.
            ended = self._got - here.keys()
            orphans = [pid for pid in here.keys() - self._got if pid in before and before[pid].parent in ended]
            self._send(orphans, signal.SIGTERM)
            is_over = self._pid not in here and self._got <= ended
            if not is_over and time.monotonic() < self._grace_ends:
                return False
            if not is_over:
                log.warning("killing rank process %d, which did not end within its grace period", self._pid)
            left = here.keys() - self._got
            self._send(left, signal.SIGTERM)
            self._kill_at = time.monotonic() + (LEFT_S if left else 0.0)
        if here and time.monotonic() < self._kill_at:
            return False
        self._send(here, signal.SIGKILL)
        return True

    def _find(self, table: Mapping[int, ProcessView]) -> Mapping[int, list[int]]:
        """Return the rank's live processes, each with its children. These are the processes of its session, their
        descendants, and processes seen before whose parent has ended."""
        children = defaultdict(list)
        for view in table.values():
            children[view.parent].append(view.pid)
        seen = self._seen
        is_seen = {pid for pid, view in table.items() if pid in seen and seen[pid].started == view.started}
        own = [pid for pid, view in table.items() if view.session == self._pid or pid in is_seen]
        here: dict[int, list[int]] = {}
        while own:
            if (pid := own.pop()) not in here:
                here[pid] = children[pid]
                own += children[pid]
        self._seen = {pid: table[pid] for pid in here}
        return here

    def _signal_processes(self, here: Mapping[int, list[int]]) -> None:
        """Send SIGTERM to processes that should get it and have not: a script may have started another program."""
        found = self._topmost(self._pid, here) if self._pid in here else []
        if not found and not self.sent:
            # Parents first: a shell must not see the end of its program and continue.
            found = sorted(here, key=lambda pid: (self._seen[pid].started, pid))
        self._send(found, signal.SIGTERM)
        self._got.update(found)

    def _topmost(self, pid: int, here: Mapping[int, list[int]]) -> list[int]:
        """Return the highest processes in the tree below `pid` that should get SIGTERM now."""
        if pid in self._got:
            return []
        runner = is_shell(pid)
        if not runner and handles_signal(pid, signal.SIGTERM):
            return [pid]
        below = [found for child in here.get(pid, ()) for found in self._topmost(child, here)]
        return [*below, pid] if below and not runner else below

    def _send(self, pids: Collection[int], number: int) -> None:
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
                # A stopped process receives its signal only when it continues.
                os.kill(pid, signal.SIGCONT)
        if pids:
            self.sent |= {number}
