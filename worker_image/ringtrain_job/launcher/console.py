"""The launcher's stdout: the merged log and the progress lines, written by one thread.

The reader of the launcher's stdout may be slow or may have closed it. Log files never wait for it: if a bounded buffer
is full, lines are omitted here, counted, and the count is printed. On a terminal the newest progress line stays below
all other lines.
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
    loss_text,
    shown_throughput,
    throughput_warnings,
)

# A bar that is shorter is not readable; a longer one adds nothing.
_LEAST_BAR, _MOST_BAR = 10, 40
_BETWEEN: Final = "  "


@dataclass(frozen=True)
class ConsoleProgressBar:
    """Contents of a progress line. `left_s`: seconds until the last step; None if unknown."""

    progress: Progress
    speed: Speed | None
    left_s: float | None

    def line(self, columns: int) -> str:
        """Return `Step 40/300  13 %  [####------]  3 min left  5120.3 images/sec  loss: 0.412`.

        The line has at most `columns` characters. Parts are omitted from the end, the bar first.
        """
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
        """Percentage of completed steps, rounded down: 100 only if no step is left."""
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
        return [part for part in (*parts, loss_text(progress), *throughput_warnings(progress)) if part]


_BOUND = 64 << 20
_CLEAR_LINE = b"\r\x1b[K"
_CYAN, _PLAIN = b"\x1b[36m", b"\x1b[0m"
_USUAL_COLUMNS = 80
_RANK = re.compile(rb"^\[\d+\]", re.MULTILINE)


class Console:
    """Writer to file descriptor `fd`, in the order of the calls to `show`. `bound`: bytes that may be queued.

    `person`: `fd` may be a terminal that a person reads; a pod's stdout is read by `kubectl logs`.
    `progress_every_s`: seconds between progress lines in a pipe; 0: a growing gap.
    """

    def __init__(self, fd: int, bound: int = _BOUND, person: bool = False, progress_every_s: float = 0.0) -> None:
        self._fd = fd
        self._progress_every_s = progress_every_s
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
        """Queue `text`, which ends with a newline. Does not block."""
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

    def progress_gap_s(self, lines: int) -> float:
        """Return the seconds before the next progress line, after `lines` of them. A terminal shows only the newest, a
        pipe shows all: there the gap grows to a minute, unless the user has set it."""
        if self._terminal:
            return 0.1
        return self._progress_every_s or min(60.0, 2.0 ** min(lines - 1, 6))

    def show_progress(self, bar: ConsoleProgressBar | None, text: str) -> None:
        """Show `text`, a line or nothing. On a terminal, `bar` replaces `text` and the previous bar."""
        if not self._terminal:
            self.show(text.encode())
            return
        with self._changed:
            self._progress = bar
            self._queue(b"")

    def close(self, timeout_s: float) -> None:
        """Write the queue for at most `timeout_s`, clear the progress line, and stop."""
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
        """Return `text` in place of the progress line, followed by that line. The line is shortened, because one that
        wraps could not be cleared."""
        columns = _terminal_columns(self._fd) - len("^C")
        line = b"" if self._progress is None else self._progress.line(columns).encode()
        if os.environ.get("NO_COLOR"):
            return _CLEAR_LINE + text + line
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
            except OSError:  # stdout was closed: the files have everything
                self._is_lost = True


def _terminal_columns(terminal: int) -> int:
    """Return the width of `terminal`, or the default if it is unknown."""
    try:
        return os.get_terminal_size(terminal).columns or _USUAL_COLUMNS
    except OSError:
        return _USUAL_COLUMNS
