"""The launcher's stdout: merged log lines and progress lines, written by one thread.

The reader of the launcher's stdout may be slow or may have closed it. Log files never wait for it: if a bounded buffer
is full, lines are omitted here, counted, and the count is printed. On a terminal the newest progress line stays below
all other lines.
"""

import errno
import os
import re
import threading
from collections import deque
from dataclasses import dataclass
from typing import Final

from ringtrain.errors import counted
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
_PIPE_BUF: Final = 4096  # a pipe takes so many bytes at once or none, so lines in it are counted as printed
_READER_GONE: Final = (errno.EPIPE, errno.EIO)  # of a pipe, of a terminal


@dataclass(frozen=True)
class ConsoleProgressBar:
    """Content of the progress line on a terminal. `left_s`: estimated seconds until the last step, or None."""

    progress: Progress
    speed: Speed | None
    left_s: float | None

    def line(self, columns: int) -> str:
        """Return the progress line, such as `Step 40/300  13 %  [####---]  3 min left  5120.3 images/sec  loss: 0.412`.

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
        """Percentage of completed steps, rounded down: 100 only after the last step."""
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
    """Thread that writes text to the file descriptor `fd`, in order. `bound`: limit on queued bytes.

    `person`: whether a person may read `fd` on a terminal. It is False in a pod, whose stdout `kubectl logs` reads.
    `progress_every_s`: seconds between progress lines if `fd` is no terminal. If 0, the intervals grow to a minute.
    """

    def __init__(self, fd: int, bound: int = _BOUND, person: bool = False, progress_every_s: float = 0.0) -> None:
        self._fd = fd
        self._progress_every_s = progress_every_s
        self._bound = bound
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._left_out = 0
        self._being_written = memoryview(b"")
        self._error: OSError | None = None
        self._closed = False
        self._terminal = person and os.isatty(fd)
        self._progress: ConsoleProgressBar | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="ringtrain-console", daemon=True)
        self._thread.start()

    def show(self, text: bytes) -> None:
        """Queue `text`, which ends with a newline. Does not block; text beyond the limit is only counted."""
        with self._changed:
            if self._error is not None:
                self._left_out += text.count(b"\n")
                return
            if self._size + len(text) > self._bound:
                self._left_out += text.count(b"\n")
                return
            if self._left_out:
                self._queue(_omission_line(self._left_out))
                self._left_out = 0
            self._queue(text)

    def progress_gap_s(self, lines: int) -> float:
        """Return the seconds until the next progress line. `lines`: number of progress lines that were already printed.

        A terminal shows only the newest line. Elsewhere the interval grows to a minute, unless the user has set it.
        """
        if self._terminal:
            return 0.1
        return self._progress_every_s or min(60.0, 2.0 ** min(lines - 1, 6))

    def show_progress(self, bar: ConsoleProgressBar | None, text: str) -> None:
        """Show the progress: on a terminal as `bar`, which replaces the previous one, otherwise as the line `text`."""
        if not self._terminal:
            self.show(text.encode())
            return
        with self._changed:
            self._progress = bar
            self._queue(b"")

    def close(self, timeout_s: float) -> str:
        """Write the queued text for at most `timeout_s`, clear the progress line, and end the thread.

        Return a message if lines were not printed. It is empty if all were, or if their reader has gone, such as head.
        """
        with self._changed:
            if self._left_out and self._error is None:
                self._queue(_omission_line(self._left_out))
                self._left_out = 0
            self._closed, self._progress = True, None
            self._queue(b"")
        self._thread.join(timeout_s)
        with self._changed:
            rest = [bytes(self._being_written), *self._waiting]
            lines = self._left_out + sum(text.count(b"\n") for text in rest)
            if not lines or (self._error is not None and self._error.errno in _READER_GONE):
                return ""
            late = f"the reader of stdout did not read them within {timeout_s:g} s"
            return f"{counted(lines, 'line')} not printed: {self._error.strerror if self._error else late}; see job.log"

    def _queue(self, text: bytes) -> None:
        self._waiting.append(text)
        self._size += len(text)
        self._changed.notify_all()

    def _above_progress(self, text: bytes) -> bytes:
        """Return bytes that write `text` above the progress line. That line is cut to the terminal's width."""
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
                self._being_written = memoryview(text)
            try:
                while self._being_written:
                    written = os.write(self._fd, self._being_written[:_PIPE_BUF])
                    self._being_written = self._being_written[written:]
            except OSError as exc:  # the files have everything
                with self._changed:
                    self._error = exc
                    self._left_out += bytes(self._being_written).count(b"\n")
                    self._being_written = memoryview(b"")


def _omission_line(lines: int) -> bytes:
    return f"[ringtrain] {counted(lines, 'line')} not shown here; see job.log\n".encode()


def _terminal_columns(terminal: int) -> int:
    """Return the width of `terminal` in columns; 80 if it is unknown."""
    try:
        return os.get_terminal_size(terminal).columns or _USUAL_COLUMNS
    except OSError:
        return _USUAL_COLUMNS
