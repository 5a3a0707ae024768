"""Runs a command on a terminal, and reads the screen and types keys like a person."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Sequence
from pathlib import Path

import pyte

from support.deadlines import patient

DEADLINE_S = patient(240.0)


class Terminal:
    """Runs `words` in `directory` on a terminal of `columns` x 40 characters; `close` must be called."""

    def __init__(self, words: Sequence[str], directory: Path, columns: int) -> None:
        self._screen = pyte.Screen(columns, 40)
        self._stream = pyte.ByteStream(self._screen)
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            words,
            cwd=directory,
            env={**env, "TERM": "xterm-256color", "TMPDIR": str(directory)},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)

    def lines(self) -> list[str]:
        """Return the lines of the screen, without trailing blanks and empty lines."""
        return [line.rstrip() for line in self._screen.display if line.strip()]

    def until(self, pattern: str) -> None:
        """Wait until `pattern` is on the screen."""
        deadline = time.monotonic() + DEADLINE_S
        while not re.search(pattern, "\n".join(self.lines())):
            assert self._read(deadline), f"{pattern!r} was never seen:\n" + "\n".join(self.lines())

    def type(self, keys: str) -> None:
        """Press keys, "\\x03" for Ctrl-C."""
        os.write(self._ours, keys.encode())

    def end(self) -> int:
        """Wait for the end and return the exit status."""
        deadline = time.monotonic() + DEADLINE_S
        while self._read(deadline):
            pass
        return self.process.wait(max(1.0, deadline - time.monotonic()))

    def hang_up(self) -> int:
        """Close the window, which sends SIGHUP, and return the exit status."""
        os.close(self._ours)
        self._ours = -1
        return self.process.wait(DEADLINE_S)

    def close(self) -> None:
        """End the remaining processes."""
        self.process.kill()
        self.process.wait()
        if self._ours >= 0:
            os.close(self._ours)

    def _read(self, deadline: float) -> bool:
        """Read the output; return False at the deadline, or if no process has the terminal open."""
        if not select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return False
        try:
            self._stream.feed(os.read(self._ours, 65536))
        except OSError:
            return False
        return True
