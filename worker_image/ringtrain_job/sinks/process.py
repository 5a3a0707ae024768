"""Sinks beside a launcher: a process each, which follows the attempt's files.

The launcher waits for none before the attempt is over, and then for some seconds.
"""

import logging
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Final

from ringtrain.shared.processes import end_child, start_child
from ringtrain_job.logs.layout import AttemptFiles
from ringtrain_job.sinks.feed import END_S, is_ended

log = logging.getLogger(__name__)

# Beyond what a sink takes for its own end: its package may take seconds to be imported.
_MARGIN_S: Final = 5.0


class SinkProcesses:
    """Starts a process for each sink of `names`. `close` it once the outcome is written."""

    def __init__(self, names: Sequence[str], files: AttemptFiles, ranks: int, env: Mapping[str, str]) -> None:
        self._files = files
        # Nothing of the job's own: its tokens are of no use there.
        inherited = {name: value for name, value in env.items() if not name.startswith("RINGTRAIN_")}
        self._processes = {name: self._start(name, ranks, inherited) for name in names}

    def _start(self, name: str, ranks: int, env: dict[str, str]) -> "subprocess.Popen[bytes]":
        words = ["export", str(self._files.directory), "--to", name, "--follow", "--ranks", str(ranks)]
        return start_child([sys.executable, "-m", "ringtrain", *words], env, stdout=subprocess.DEVNULL)

    def close(self) -> None:
        """Let them send the end, for at most some seconds; without an outcome another launcher's go on."""
        deadline = time.monotonic() + (END_S + _MARGIN_S if is_ended(self._files) else 0.0)
        for name, process in self._processes.items():
            if not end_child(process, max(0.0, deadline - time.monotonic())) and is_ended(self._files):
                log.warning("%s did not take the end of the run in time", name)
