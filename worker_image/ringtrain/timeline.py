"""Timeline of every rank as a Chrome trace, which https://ui.perfetto.dev and chrome://tracing show.

    RINGTRAIN_TIMELINE=/tmp/timeline.json ringtrain run -np 2 python train.py

Ranks that share a directory write to one file, each as a separate process of the trace. The file is valid JSON at any
moment: a writer locks it, appends, and rewrites the end of the array. `ringtrain timeline FILE` summarizes it.
"""

import contextlib
import errno
import fcntl
import itertools
import json
import os
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from ringtrain.step_time import INPUT

T = TypeVar("T")

# Events are buffered up to this number and this time. They bound the loss if the rank is killed, and the delay for a
# reader of the file during the run.
_FLUSH_EVENTS: Final = 1000
_FLUSH_S: Final = 0.5
_BEGIN: Final = b"[\n"
_END: Final = b"\n]\n"


class Timeline:
    """Writer of one rank's events to `path`. Thread-safe."""

    def __init__(self, path: Path, rank: int, run: str) -> None:
        """Open the file and start the thread that flushes.

        `run`: an identifier, the same on all ranks of one run. Raises OSError if `path` can't be written or is not a
        timeline.
        """
        self._rank = rank
        self._lock = threading.Lock()
        self._events: list[dict[str, Any]] = []
        self._threads: set[int] = set()
        # Ranks are aligned by the wall clock; spans are measured by a monotonic clock.
        self._zero_ns = time.time_ns() - time.perf_counter_ns()
        self._fd = _open(path, run)
        self._add({"ph": "M", "name": "process_name", "args": {"name": f"rank {rank}"}})
        self._add({"ph": "M", "name": "process_sort_index", "args": {"sort_index": rank}})
        self._closed = threading.Event()
        self._flusher = threading.Thread(target=self._flush_periodically, name="ringtrain-timeline", daemon=True)
        self._flusher.start()

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

        `track`: the row that shows it, instead of the calling thread's; spans of one track may overlap.
        """
        span = {"ph": "X", "name": name, "cat": category, "args": args}
        times = {"ts": (began_ns + self._zero_ns) / 1000, "dur": (ended_ns - began_ns) / 1000}
        self._add(span | times | ({} if track is None else {"tid": track}))

    def mark(self, name: str, category: str, at_ns: int, args: dict[str, Any], track: str) -> None:
        """Add an instant event to `track`. `at_ns`: value of `time.perf_counter_ns`."""
        at = {"ts": (at_ns + self._zero_ns) / 1000, "s": "t"}
        self._add({"ph": "i", "name": name, "cat": category, "args": args, "tid": track} | at)

    def close(self) -> None:
        """Write the remaining events and close the file."""
        self._closed.set()
        with self._lock:
            self._flush()
            os.close(self._fd)
            self._fd = -1
        self._flusher.join()

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

    def _flush_periodically(self) -> None:
        while not self._closed.wait(_FLUSH_S):
            with self._lock:
                if self._fd >= 0:
                    self._flush()

    def _flush(self) -> None:
        lines = ",\n".join(map(json.dumps, self._events)).encode()
        if lines:
            self._events.clear()
            with _locked(self._fd):
                end = os.fstat(self._fd).st_size - len(_END)
                os.pwrite(self._fd, b",\n" + lines + _END, end)


def _open(path: Path, run: str) -> int:
    """Open the timeline file of this `run`. A file of another run at `path` is first renamed to a free number."""
    first = _BEGIN + json.dumps({"ph": "M", "name": "run", "pid": 0, "args": {"run": run}}).encode()
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            with _locked(fd):
                found = os.pread(fd, len(first), 0)
                if not found:
                    os.write(fd, first + _END)
                if found in (b"", first):
                    return fd
                if not found.startswith(_BEGIN):
                    raise OSError(errno.EEXIST, "The file exists and is not a timeline")
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.stat(path), os.fstat(fd)):  # else another rank has renamed it
                        path.rename(next(name for name in _numbered(path) if not name.exists()))
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _numbered(path: Path) -> Iterator[Path]:
    return (path.with_name(f"{path.stem}.{number}{path.suffix}") for number in itertools.count(1))


@contextlib.contextmanager
def _locked(fd: int) -> Iterator[None]:
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)


@contextlib.contextmanager
def _span(timeline: Timeline, name: str, category: str, args: dict[str, Any]) -> Iterator[None]:
    """Record the time that the calling thread spends in this context as a span."""
    began_ns = time.perf_counter_ns()
    try:
        yield
    finally:
        timeline.record(name, category, began_ns, time.perf_counter_ns(), args)


Span = contextlib.AbstractContextManager[None]
NO_SPAN: Final[Span] = contextlib.nullcontext()  # used if no timeline is being written
active: Timeline | None = None  # None if this rank writes no timeline


def step_ended(began_ns: int, number: int) -> int:
    """Record the span of step `number`, from `began_ns` (end of the previous step) to now. Return the current time."""
    now_ns = time.perf_counter_ns()
    timeline = active
    if timeline is not None:
        timeline.record(f"step {number}", "step", began_ns, now_ns, {})
    return now_ns


def span(name: str, category: str = "user", **args: Any) -> Span:
    """Return a context manager that records its time in the timeline, at negligible cost if none is written.

        with rt.timeline.span("augment", "input"):
            batch = augment(batch)

    `category`: `ringtrain timeline` recognizes "input" and "forward" as parts of a step. `args`: numbers and strings
    that the viewer shows with the span.
    """
    timeline = active  # another thread may stop it meanwhile
    return NO_SPAN if timeline is None else _span(timeline, name, category, args)


def inputs(batches: Iterable[T]) -> Iterator[T]:
    """Yield the items of `batches`.

    The wait for each counts as this rank's wait for input, in the timeline and in `ringtrain.report`.

        for x, y in rt.timeline.inputs(loader):
            ...

    Streams of `ringtrain.data.service` measure this themselves.
    """
    waiting, end = iter(batches), object()
    while True:
        with INPUT, span("next batch", "input"):
            batch = next(waiting, end)
        if batch is end:
            return
        yield cast(T, batch)


def record_since(began_ns: int, name: str, category: str) -> None:
    """Record a span from `began_ns` of `time.perf_counter_ns`, a time in this or another function, to now."""
    timeline = active
    if timeline is not None:
        timeline.record(name, category, began_ns, time.perf_counter_ns(), {})


def record(name: str, category: str, began_ns: int, ended_ns: int, track: str, **args: Any) -> None:
    """Record a span from `began_ns` to `ended_ns` of `time.perf_counter_ns` in the track `track`."""
    timeline = active
    if timeline is not None:
        timeline.record(name, category, began_ns, ended_ns, args, track)


def mark(name: str, category: str, at_ns: int, track: str, **args: Any) -> None:
    """Record an instant event at `at_ns` of `time.perf_counter_ns` in the track `track`."""
    timeline = active
    if timeline is not None:
        timeline.mark(name, category, at_ns, args, track)


def start(path: str | Path, rank: int, run: str) -> None:
    """Start a timeline that is written to `path`, and end the timeline that is being written. For `run` and errors see
    `Timeline`."""
    global active
    stop()
    active = Timeline(Path(path), rank, run)


def stop() -> None:
    """Write the remaining events and end the timeline. Does nothing if no timeline is written."""
    global active
    timeline, active = active, None
    if timeline is not None:
        timeline.close()


def _forget_in_child() -> None:
    """Stop recording in a forked child, in which the lock may be owned by a thread that does not exist there."""
    global active
    active = None


os.register_at_fork(after_in_child=_forget_in_child)
