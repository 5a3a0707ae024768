"""What every rank did when, as a Chrome trace: open the file in https://ui.perfetto.dev or chrome://tracing.

    RINGTRAIN_TIMELINE=/tmp/timeline.json ringtrain run -np 2 python train.py

Ranks that share a directory write to one file, each as a process of its own. The file is complete at any moment:
it is a JSON array whose end may be missing, which the format allows, and ranks append whole lines.
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

# Events are kept until there are so many: a write every few hundred steps costs nothing beside them.
_FLUSH_EVENTS: Final = 1000


class Timeline:
    """Collects the events of one rank and appends them to `path`. For any number of threads."""

    def __init__(self, path: Path, rank: int) -> None:
        """Raises OSError if `path` can't be written."""
        self._rank = rank
        self._lock = threading.Lock()
        self._events: list[dict[str, Any]] = []
        self._threads: set[int] = set()
        # Ranks compare by the wall clock, and time by a clock that never steps back.
        self._zero_ns = time.time_ns() - time.perf_counter_ns()
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)
            os.write(self._fd, b"[\n")
        except FileExistsError:
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND)
        self._add({"ph": "M", "name": "process_name", "args": {"name": f"rank {rank}"}})
        self._add({"ph": "M", "name": "process_sort_index", "args": {"sort_index": rank}})

    def record(
        self,
        name: str,
        category: str,
        began_ns: int,
        ended_ns: int,
        args: dict[str, Any],
        track: str | None = None,
    ) -> None:
        """Add a span from `began_ns` to `ended_ns` of `time.perf_counter_ns`.

        `track`: what shows it, instead of the calling thread; spans of one track may overlap.
        """
        span = {"ph": "X", "name": name, "cat": category, "args": args}
        times = {"ts": (began_ns + self._zero_ns) / 1000, "dur": (ended_ns - began_ns) / 1000}
        self._add(span | times | ({} if track is None else {"tid": track}))

    def close(self, whole: bool = False) -> None:
        """Write what is left. `whole`: end the array, so that strict parsers read a file of one rank, too."""
        with self._lock:
            self._flush()
            if whole:
                os.write(self._fd, b"{}]\n")
            os.close(self._fd)
            self._fd = -1

    def _add(self, event: dict[str, Any]) -> None:
        thread = threading.get_native_id()
        with self._lock:
            if self._fd < 0:
                return
            if thread not in self._threads:
                self._threads.add(thread)
                named = {"ph": "M", "name": "thread_name", "args": {"name": threading.current_thread().name}}
                self._events.append(named | {"pid": self._rank, "tid": thread})
            self._events.append({"tid": thread} | event | {"pid": self._rank})
            if len(self._events) >= _FLUSH_EVENTS:
                self._flush()

    def _flush(self) -> None:
        lines = "".join(json.dumps(event) + ",\n" for event in self._events)
        self._events.clear()
        os.write(self._fd, lines.encode())


@contextlib.contextmanager
def _span(timeline: Timeline, name: str, category: str, args: dict[str, Any]) -> Iterator[None]:
    """A stretch of time in one thread."""
    began_ns = time.perf_counter_ns()
    try:
        yield
    finally:
        timeline.record(name, category, began_ns, time.perf_counter_ns(), args)


Span = contextlib.AbstractContextManager[None]
NO_SPAN: Final[Span] = contextlib.nullcontext()  # in the place of a span: nothing is recorded
_active: Timeline | None = None


def span(name: str, category: str, **args: Any) -> Span:
    """A context whose time is recorded if a timeline is being written; costs next to nothing otherwise."""
    timeline = _active  # which another thread may stop meanwhile
    return NO_SPAN if timeline is None else _span(timeline, name, category, args)


def record_since(began_ns: int, name: str, category: str) -> None:
    """Record what began at `began_ns` of `time.perf_counter_ns`, perhaps in another function, and ends now."""
    timeline = _active
    if timeline is not None:
        timeline.record(name, category, began_ns, time.perf_counter_ns(), {})


def record(name: str, category: str, began_ns: int, ended_ns: int, track: str, **args: Any) -> None:
    """Record what lasted from `began_ns` to `ended_ns` of `time.perf_counter_ns`, in a track of its own."""
    timeline = _active
    if timeline is not None:
        timeline.record(name, category, began_ns, ended_ns, args, track)


def start(path: str | Path, rank: int) -> None:
    """Begin to write a timeline to `path`, or to another one than before. Raises OSError."""
    global _active
    stop()
    _active = Timeline(Path(path), rank)


def stop(whole: bool = False) -> None:
    """Write what is left and end; `whole`: end the file's JSON, too. Without a timeline it does nothing."""
    global _active
    timeline, _active = _active, None
    if timeline is not None:
        timeline.close(whole)
