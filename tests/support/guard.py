"""End the processes that this process has started for a test when it ends, also by SIGKILL."""

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
    """Ends process groups when this process ends, by one small helper process that is started on demand."""

    def __init__(self) -> None:
        self._watcher: subprocess.Popen[str] | None = None

    def begun(self, group: int) -> None:
        """Watch the process group `group`."""
        self._tell(f"+{group}")

    def ended(self, group: int) -> None:
        """Stop watching the group. It has ended, and its number may be used again."""
        self._tell(f"-{group}")

    def _tell(self, line: str) -> None:
        if self._watcher is None:
            # a separate session, so that a Ctrl-C that ends us does not end it first
            self._watcher = subprocess.Popen(
                [sys.executable, "-S", "-E", "-c", _WATCHER],
                stdin=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        assert self._watcher.stdin is not None
        print(line, file=self._watcher.stdin, flush=True)


GUARD = Guard()
