"""The spool: bounded, ordered, and honest about what it dropped."""

import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringtrain_job.agent.spool import LogSpool, coalesce_spooled_chunks
from ringtrain_job.logs.journal import LogStream
from ringtrain_job.logs.layout import AttemptFiles
from ringtrain_job.logs.store import LogChunk, LogStore

NOTICE = re.compile(rb"\[ringtrain\] dropped (\d+) lines? of rank (\d+): ")


def test_the_same_until_it_is_durable() -> None:
    """Chunks are returned again until they are acknowledged."""
    spool = LogSpool()
    spool.put(LogStream.LOG, 0, b"a\nb\n")
    first = spool.take(1 << 20, 0)
    assert first == spool.take(1 << 20, 0) == [LogChunk(LogStream.LOG, 0, 1, 2, b"a\nb\n")]
    assert not spool.done({(LogStream.LOG, 0): 1})
    assert spool.take(1 << 20, 0) == first
    assert spool.done({(LogStream.LOG, 0): 2})
    assert spool.take(1 << 20, 0) == []
    assert spool.empty


def test_neighbours_are_joined() -> None:
    """Runs of one rank become one chunk; the order of ranks stays."""
    spool = LogSpool()
    for rank, data in ((0, b"a\n"), (0, b"b\n"), (1, b"x\n"), (0, b"c\n")):
        spool.put(LogStream.LOG, rank, data)
    assert [(c.rank, c.first, c.lines, c.data) for c in spool.take(1 << 20, 0)] == [
        (0, 1, 2, b"a\nb\n"), (1, 1, 1, b"x\n"), (0, 3, 1, b"c\n"),
    ]  # fmt: skip
    assert coalesce_spooled_chunks([]) == []


def test_beyond_memory_comes_the_disk() -> None:
    """Records stay in order when they move between memory and disk."""
    spool = LogSpool(memory_bytes=1000, disk_bytes=100_000)
    lines = [b"line %d\n" % number for number in range(50)]
    for line in lines:
        spool.put(LogStream.LOG, 0, line)
    assert spool.dropped() == {}
    assert _drain(spool) == b"".join(lines)
    spool.close()


def test_the_bound_is_on_what_waits() -> None:
    """A disk part that is never quite empty drops nothing, however much passes through it."""
    spool = LogSpool(memory_bytes=250, disk_bytes=1000)
    lines = [b"line %d\n" % number for number in range(500)]
    read = b""
    for number, line in enumerate(lines):
        spool.put(LogStream.LOG, 0, line)
        if number >= 5:
            (chunk,) = spool.take(1, 0)
            spool.done({(LogStream.LOG, 0): chunk.first + chunk.lines - 1})
            read += chunk.data
    assert spool.dropped() == {}
    assert read + _drain(spool) == b"".join(lines)
    spool.close()


@pytest.mark.parametrize("stream", [LogStream.LOG, LogStream.REPORT])
def test_what_is_dropped_is_said(stream: LogStream) -> None:
    """The next line that fits is preceded by how many are missing."""
    spool = LogSpool(memory_bytes=700, disk_bytes=0)
    spool.put(stream, 3, b"kept\n")
    spool.put(stream, 3, b"x" * 600 + b"\n" + b"y\n")
    assert spool.dropped() == ({3: 2} if stream is LogStream.LOG else {})
    assert _drain(spool) == b"kept\n"
    spool.put(stream, 3, b"later\n")
    what = b"lines" if stream is LogStream.LOG else b"reports"
    expected = b"[ringtrain] dropped 2 %s of rank 3: " % what
    notice, later = _drain(spool).splitlines()
    assert notice.startswith(expected)
    assert later == b"later"


def test_what_nobody_misses_is_dropped_without_a_word() -> None:
    """Reports that an agent adds to a rank's own reports do not count as dropped."""
    spool = LogSpool(memory_bytes=250, disk_bytes=0)
    spool.put(LogStream.LOG, 0, b"a" * 40 + b"\n")
    spool.offer(LogStream.REPORT, 0, b"{}\n")
    (chunk,) = spool.take(1 << 20, 0.0)
    assert spool.done({(LogStream.LOG, 0): chunk.first})
    spool.finish(0)
    assert (spool.empty, spool.dropped()) == (True, {})
    spool.offer(LogStream.REPORT, 0, b"{}\n")
    assert not spool.empty


def test_what_is_dropped_last_is_said_at_the_end() -> None:
    """The number of dropped lines of a rank that ended is reported even if the spool is still full."""
    spool = LogSpool(memory_bytes=300, disk_bytes=0)
    spool.put(LogStream.LOG, 0, b"x" * 90 + b"\n")
    spool.put(LogStream.LOG, 0, b"dropped\n")
    spool.finish(0)
    assert b"[ringtrain] dropped 1 line of rank 0: " in _drain(spool)


STEP = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 2), st.integers(1, 5)),
    st.tuples(st.just("ship"), st.booleans(), st.just(0)),
    st.tuples(st.just("restart"), st.just(0), st.just(0)),
)


@settings(max_examples=150)
@given(steps=st.lists(STEP, max_size=40))
def test_every_line_is_stored_once_or_counted(steps: list[tuple[str, int, int]]) -> None:
    """Every line is in the file once and in order, or counted in a notice, also after lost answers and restarts of the
    launcher."""
    with tempfile.TemporaryDirectory() as directory:
        files = AttemptFiles.of(Path(directory), "default", "job", 1)
        spool, store = LogSpool(memory_bytes=900, disk_bytes=300), LogStore(files, "uid", 1)
        written = [0, 0, 0]
        for what, first, second in steps:
            if what == "write":
                for _ in range(second):
                    spool.put(LogStream.LOG, first, b"%d\n" % written[first])
                    written[first] += 1
            elif what == "ship":
                _ship(spool, store, answer_lost=bool(first))
            else:
                store.close()
                store = LogStore(files, "uid", 1)
        for rank in range(3):
            spool.finish(rank)
        while not spool.empty:
            _ship(spool, store, answer_lost=False)
        store.close()
        spool.close()
        for rank in range(3):
            _check(files.rank_log(rank), rank, written[rank], spool.dropped().get(rank, 0))


def _check(path: Path, rank: int, written: int, dropped: int) -> None:
    lines = path.read_bytes().splitlines() if path.exists() else []
    notices = [match for line in lines if (match := NOTICE.match(line))]
    numbers = [int(line) for line in lines if not NOTICE.match(line)]
    assert numbers == sorted(set(numbers))
    assert all(int(match[2]) == rank for match in notices)
    assert sum(int(match[1]) for match in notices) == dropped == written - len(numbers)


def _ship(spool: LogSpool, store: LogStore, *, answer_lost: bool) -> None:
    durable = {(chunk.stream, chunk.rank): store.append(chunk) for chunk in spool.take(200, 0)}
    if not answer_lost:
        spool.done(durable)


def _drain(spool: LogSpool) -> bytes:
    data = b""
    while chunks := spool.take(1 << 20, 0):
        data += b"".join(chunk.data for chunk in chunks)
        spool.done({(chunk.stream, chunk.rank): chunk.first + chunk.lines - 1 for chunk in chunks})
    return data
