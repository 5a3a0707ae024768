"""Stopping a rank, whoever asks: the kubelet, the launcher, who started it, a change of an elastic world, a person.

1. SIGTERM goes, once, to the topmost processes of the rank that catch or ignore it. A shell stands aside for what it
   has started: `bash run.sh` would end at once, and the rank with it. Any other process that has one of them below
   it, and would end by SIGTERM, gets it too. What is below a process that answers (loader workers) is left alone until
   that has ended, and so is what is beside it (`tee`). Where no process answers, all get SIGTERM.
2. The rank has ended when its first process and all that got the signal have ended, or after its grace period.
3. Then what is left gets SIGTERM, and SIGKILL a second later.
"""

import logging
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Final

from ringtrain.shared.proc import ProcessView, answers_signal, living_processes, only_runs_others, process_view

log = logging.getLogger(__name__)

# Between SIGTERM and SIGKILL for what a rank has left: to remove files of its own. A container's end gives none.
LEFT_S: Final = 1.0


class RankStop:
    """Stops the processes of one rank. Not thread-safe."""

    def __init__(self, pid: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`pid`: the rank's first process, the leader of a session of its own."""
        self._pid = pid
        self._clock = clock
        first = process_view(pid)
        # The rank's processes as they were seen last.
        self._seen = {pid: first} if first else {}
        self._got: set[int] = set()
        self._grace_ends: float | None = None
        self._kill_at: float | None = None
        # The signals that were sent from here.
        self.sent: frozenset[int] = frozenset()

    def ask(self, grace_s: float) -> None:
        """Ask the rank to stop within `grace_s`. A second request changes nothing."""
        if self._grace_ends is None:
            self._grace_ends = self._clock() + grace_s
            self.look()

    def kill(self) -> None:
        """Kill all processes of the rank now."""
        self._grace_ends = self._kill_at = self._clock()
        self.look()

    @property
    def asked(self) -> bool:
        """Whether the rank was asked to stop, or killed."""
        return self._grace_ends is not None

    def look(self, table: Mapping[int, ProcessView] | None = None) -> bool:
        """Do what is due; returns whether there is nothing more to wait for. `table`: all processes, as of now."""
        if self._grace_ends is None:
            return True
        before, here = self._seen, self._find(living_processes() if table is None else table)
        if self._kill_at is None:
            self._ask_processes(here)
            # The workers of a loader that has ended would hold its pipe open for seconds.
            ended = self._got - here.keys()
            orphans = [pid for pid in here.keys() - self._got if pid in before and before[pid].parent in ended]
            self._send(orphans, signal.SIGTERM)
            is_over = self._pid not in here and self._got <= ended
            if not is_over and self._clock() < self._grace_ends:
                return False
            if not is_over:
                log.warning("process %d, a rank, is killed: it has not ended within its grace period", self._pid)
            left = here.keys() - self._got
            self._send(left, signal.SIGTERM)
            self._kill_at = self._clock() + (LEFT_S if left else 0.0)
        if here and self._clock() < self._kill_at:
            return False
        self._send(here, signal.SIGKILL)
        return True

    def _find(self, table: Mapping[int, ProcessView]) -> Mapping[int, list[int]]:
        """The rank's living processes, each with its children: the session, what is below it, and what was seen there
        before and has lost its parent."""
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

    def _ask_processes(self, here: Mapping[int, list[int]]) -> None:
        """Send SIGTERM to whoever is to get it, and has not: a script may start another program meanwhile."""
        found = self._topmost(self._pid, here) if self._pid in here else []
        if not found and not self.sent:
            # Parents first: a shell must not see the end of its program, and go on.
            found = sorted(here, key=lambda pid: (self._seen[pid].started, pid))
        self._send(found, signal.SIGTERM)
        self._got.update(found)

    def _topmost(self, pid: int, here: Mapping[int, list[int]]) -> list[int]:
        """Processes from `pid` down that are to get SIGTERM now."""
        if pid in self._got:
            return []
        runner = only_runs_others(pid)
        if not runner and answers_signal(pid, signal.SIGTERM):
            return [pid]
        below = [found for child in here.get(pid, ()) for found in self._topmost(child, here)]
        return [*below, pid] if below and not runner else below

    def _send(self, pids: Collection[int], number: int) -> None:
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
                # A stopped process gets its signal when it goes on, and not before.
                os.kill(pid, signal.SIGCONT)
        if pids:
            self.sent |= {number}
