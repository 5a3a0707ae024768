"""The launcher's stdout: the merged log and the lines of progress, written by one thread.

Whoever reads the launcher's stdout may be slow or gone. The files never wait for it: what does not fit in a
bounded buffer is left out here, counted, and said. On a terminal the newest line of progress stays below all
others.
"""

import os
import re
import threading
from collections import deque
from dataclasses import dataclass
from typing import Final

from ringtrain.shared.formats import duration
from ringtrain_job.launcher.throughput import (
    Progress,
    Speed,
    loss_beside_throughput,
    shown_throughput,
    throughput_warnings,
)

# A shorter bar says nothing, a longer one no more.
_LEAST_BAR, _MOST_BAR = 10, 40
_BETWEEN: Final = "  "


@dataclass(frozen=True)
class ConsoleProgressBar:
    """`left_s`: seconds until the last step, None where that is not known."""

    progress: Progress
    speed: Speed | None
    left_s: float | None

    def line(self, columns: int) -> str:
        """`Step 40/300  13 %  [####------]  3 min left  5120.3 images/sec  loss: 0.412`, no longer than `columns`:
        what is last is left out, the bar first of all."""
        head, *others = self._parts()
        whole = head
        shown = []
        for part in others:
            if len(whole) + len(_BETWEEN) + len(part) > columns:
                break
            whole += _BETWEEN + part
            shown.append(part)
        room = columns - len(whole) - len(_BETWEEN) - len("[]")
        if self.progress.total_steps and room >= _LEAST_BAR:
            width = min(room, _MOST_BAR)
            done = width * self._percent // 100
            shown.insert(1, f"[{'#' * done}{'-' * (width - done)}]")
        return _BETWEEN.join([head, *shown])[: max(columns, 0)]

    @property
    def _percent(self) -> int:
        """Rounded down: 100 is when no step is left."""
        return min(100, 100 * self.progress.step // (self.progress.total_steps or 1))

    def _parts(self) -> list[str]:
        progress = self.progress
        if progress.total_steps:
            ending = progress.step >= progress.total_steps
            left = "" if self.left_s is None else f"{duration(self.left_s)} left"
            parts = [
                f"Step {progress.step}/{progress.total_steps}",
                f"{self._percent} %",
                "ending" if ending else left,
            ]
        else:
            parts = [f"Step {progress.step}"]
        parts += [f"{shown_throughput(self.speed.mean)} {progress.unit}/sec"] if self.speed else []
        return [part for part in (*parts, loss_beside_throughput(progress), *throughput_warnings(progress)) if part]


_BOUND = 64 << 20
_CLEAR_LINE = b"\r\x1b[K"
_CYAN, _PLAIN = b"\x1b[36m", b"\x1b[0m"
_USUAL_COLUMNS = 80
_RANK = re.compile(rb"^\[\d+\]", re.MULTILINE)


class LauncherConsole:
    """Writes to file descriptor `fd` in the order of `show`. `bound`: bytes that may be waiting.

    `person`: somebody may look at the terminal that `fd` perhaps is; a pod's is read by `kubectl logs`.
    """

    def __init__(self, fd: int, bound: int = _BOUND, person: bool = False) -> None:
        self._fd = fd
        self._bound = bound
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._left_out = 0
        self._is_lost = False
        self._closed = False
        self._terminal = person and os.isatty(fd)
        self._progress: ConsoleProgressBar | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="ringtrain-console", daemon=True)
        self._thread.start()

    def show(self, text: bytes) -> None:
        """Queue `text`, which ends with a newline; never blocks."""
        with self._changed:
            if self._is_lost:
                return
            if self._size + len(text) > self._bound:
                self._left_out += text.count(b"\n")
                return
            if self._left_out:
                self._queue(b"[ringtrain] %d lines were not shown here; they are in job.log\n" % self._left_out)
                self._left_out = 0
            self._queue(text)

    @property
    def progress_every_s(self) -> float:
        """Seconds from one line of progress to the next: a terminal has one, and a pipe has them all."""
        return 0.1 if self._terminal else 1.0

    def show_progress(self, bar: ConsoleProgressBar | None, text: str) -> None:
        """Show `text`, a line or nothing; on a terminal `bar` in its place and in that of the bar before it."""
        if not self._terminal:
            self.show(text.encode())
            return
        with self._changed:
            self._progress = bar
            self._queue(b"")

    def close(self, timeout_s: float) -> None:
        """Write what is waiting, for at most `timeout_s`, clear the line of progress, and stop."""
        with self._changed:
            if self._left_out:
                self._queue(b"[ringtrain] %d lines were not shown here; they are in job.log\n" % self._left_out)
            self._closed, self._progress = True, None
            self._queue(b"")
        self._thread.join(timeout_s)

    def _queue(self, text: bytes) -> None:
        self._waiting.append(text)
        self._size += len(text)
        self._changed.notify_all()

    def _above_progress(self, text: bytes) -> bytes:
        """`text` in place of the line of progress, and below it that line, shortened: one that wraps stays."""
        columns = _terminal_columns(self._fd) - len("^C")
        line = b"" if self._progress is None else self._progress.line(columns).encode()
        return _CLEAR_LINE + _RANK.sub(_CYAN + rb"\g<0>" + _PLAIN, text) + _CYAN + line + _PLAIN

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                text = b"".join(self._waiting)
                if self._terminal:
                    text = self._above_progress(text)
                self._waiting.clear()
                self._size = 0
            try:
                view = memoryview(text)
                while view:
                    view = view[os.write(self._fd, view) :]
            except OSError:  # nobody reads any more: the files have everything
                self._is_lost = True


def _terminal_columns(terminal: int) -> int:
    """The width of `terminal`; of one that does not tell, or is gone by now, the usual one."""
    try:
        return os.get_terminal_size(terminal).columns or _USUAL_COLUMNS
    except OSError:
        return _USUAL_COLUMNS
