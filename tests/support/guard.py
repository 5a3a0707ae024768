"""Whatever ends this process, SIGKILL included: the processes that it started for a test end with it."""

import subprocess
import sys

# Reads process groups, `+` and `-` for begun and ended, from a pipe whose other end only this process holds. When
# this process is gone, by whatever signal, the pipe ends, and so do the groups that are left.
_WATCHER = """
import os, signal, sys
left = set()
for line in sys.stdin:
    (left.add if line[0] == "+" else left.discard)(int(line[1:]))
for group in left:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""


class Guard:
    """Ends process groups when this process is gone. One small process of its own, started when it is needed."""

    def __init__(self) -> None:
        self._watcher: subprocess.Popen[str] | None = None

    def begun(self, group: int) -> None:
        """From now on the process group `group` ends with this process."""
        self._tell(f"+{group}")

    def ended(self, group: int) -> None:
        """The group has ended: its number may soon be another's."""
        self._tell(f"-{group}")

    def _tell(self, line: str) -> None:
        if self._watcher is None:
            # a session of its own: the Ctrl-C that ends us must not end it first
            self._watcher = subprocess.Popen(
                [sys.executable, "-S", "-E", "-c", _WATCHER],
                stdin=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        assert self._watcher.stdin is not None
        print(line, file=self._watcher.stdin, flush=True)


GUARD = Guard()
