"""The launcher's stdout: the merged log and the lines of progress, written by one thread.

Whoever reads the launcher's stdout may be slow or gone. The files never wait for it: what does not fit in a
bounded buffer is left out here, counted, and said. On a terminal the newest line of progress stays below all
others.
"""

import os
import re
import textwrap
import threading
from collections import deque

_BOUND = 64 << 20
_CLEAR_LINE = b"\r\x1b[K"
_CYAN, _PLAIN = b"\x1b[36m", b"\x1b[0m"
_USUAL_COLUMNS = 80
_RANK = re.compile(rb"^\[\d+\]", re.MULTILINE)


class Console:
    """Writes to file descriptor `fd` in the order of `show`. `bound`: bytes that may be waiting.

    `person`: somebody may look at the terminal that `fd` perhaps is; a pod's is read by `kubectl logs`.
    """

    def __init__(self, fd: int, bound: int = _BOUND, person: bool = False) -> None:
        self._fd = fd
        self._bound = bound
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._left_out = 0
        self._gone = False
        self._closed = False
        self._terminal = person and os.isatty(fd)
        self._progress = b""
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="ringtrain-console", daemon=True)
        self._thread.start()

    def show(self, text: bytes) -> None:
        """Queue `text`, which ends with a newline; never blocks."""
        with self._changed:
            if self._gone:
                return
            if self._size + len(text) > self._bound:
                self._left_out += text.count(b"\n")
                return
            if self._left_out:
                self._queue(b"[ringtrain] %d lines were not shown here; they are in job.log\n" % self._left_out)
                self._left_out = 0
            self._queue(text)

    def show_progress(self, text: bytes, *, is_known: bool = False) -> None:
        """As `show`; on a terminal, `text` takes the place of the line of progress before it.

        `is_known`: the ranks' own lines say the same, and no further line does.
        """
        if not self._terminal:
            if not is_known:
                self.show(text)
            return
        with self._changed:
            self._progress = text.rstrip()
            self._queue(b"")

    def close(self, timeout_s: float) -> None:
        """Write what is waiting, for at most `timeout_s`, clear the line of progress, and stop."""
        with self._changed:
            if self._left_out:
                self._queue(b"[ringtrain] %d lines were not shown here; they are in job.log\n" % self._left_out)
            self._closed, self._progress = True, b""
            self._queue(b"")
        self._thread.join(timeout_s)

    def _queue(self, text: bytes) -> None:
        self._waiting.append(text)
        self._size += len(text)
        self._changed.notify_all()

    def _above_progress(self, text: bytes) -> bytes:
        """`text` in place of the line of progress, and below it that line, shortened: one that wraps stays."""
        columns = _columns(self._fd) - len("^C")
        line = textwrap.shorten(self._progress.decode(), max(columns, 1), placeholder="…").encode()
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
                self._gone = True


def _columns(terminal: int) -> int:
    """The width of `terminal`; of one that does not tell, or is gone by now, the usual one."""
    try:
        return os.get_terminal_size(terminal).columns or _USUAL_COLUMNS
    except OSError:
        return _USUAL_COLUMNS
