"""The launcher's stdout: the merged log and the lines of progress, written by one thread.

Whoever reads the launcher's stdout may be slow or gone. The files never wait for it: what does not fit in a
bounded buffer is left out here, counted, and said.
"""

import os
import threading
from collections import deque

_BOUND = 64 << 20


class Console:
    """Writes to file descriptor `fd` in the order of `show`. `bound`: bytes that may be waiting."""

    def __init__(self, fd: int, bound: int = _BOUND) -> None:
        self._fd = fd
        self._bound = bound
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._left_out = 0
        self._gone = False
        self._closed = False
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

    def close(self, timeout_s: float) -> None:
        """Write what is waiting, for at most `timeout_s`, and stop."""
        with self._changed:
            if self._left_out:
                self._queue(b"[ringtrain] %d lines were not shown here; they are in job.log\n" % self._left_out)
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def _queue(self, text: bytes) -> None:
        self._waiting.append(text)
        self._size += len(text)
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                text = b"".join(self._waiting)
                self._waiting.clear()
                self._size = 0
            try:
                view = memoryview(text)
                while view:
                    view = view[os.write(self._fd, view) :]
            except OSError:  # nobody reads any more: the files have everything
                self._gone = True
