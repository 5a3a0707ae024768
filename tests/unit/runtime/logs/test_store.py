"""The files of an attempt: every record once and in order, also after a kill between any two writes."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringtrain_job.logs.journal import (
    JournalEntry,
    LogStream,
    RecoveredJournal,
    encode_journal_entry,
    journal_header,
    recover_journal,
)
from ringtrain_job.logs.layout import AttemptFiles
from ringtrain_job.logs.store import LogChunk, LogStore

ENTRIES = [
    JournalEntry(LogStream.LOG, 0, 3, 30, 42),
    JournalEntry(LogStream.REPORT, 1, 1, 80, 42),
    JournalEntry(LogStream.LOG, 0, 5, 50, 70),
]


def test_a_journal_says_how_far_files_are_good() -> None:
    """The newest entry of each stream, and the sizes."""
    data = journal_header("uid") + b"".join(map(encode_journal_entry, ENTRIES))
    expected = {(LogStream.LOG, 0): ENTRIES[2], (LogStream.REPORT, 1): ENTRIES[1]}
    assert recover_journal(data) == RecoveredJournal(
        "uid", expected, job_size=70, metrics_size=80, good_bytes=len(data)
    )


@given(cut=st.integers(0, 200))
def test_a_torn_journal(cut: int) -> None:
    """A journal that is cut at any byte has the content of its last complete record."""
    whole = journal_header("uid") + b"".join(map(encode_journal_entry, ENTRIES))
    torn = whole[:cut]
    state = recover_journal(torn)
    if len(torn) < len(journal_header("uid")):
        assert state.uid is None
        return
    records = (len(torn) - len(journal_header("uid"))) // len(encode_journal_entry(ENTRIES[0]))
    good = journal_header("uid") + b"".join(map(encode_journal_entry, ENTRIES[:records]))
    assert state == recover_journal(good)
    assert state.good_bytes == len(good)


def test_a_damaged_record_ends_a_journal() -> None:
    """A record whose checksum is wrong is not believed, nor is anything after it."""
    records = [bytearray(encode_journal_entry(entry)) for entry in ENTRIES]
    records[1][5] ^= 1
    state = recover_journal(journal_header("uid") + b"".join(records))
    assert set(state.entries) == {(LogStream.LOG, 0)}
    assert state.entries[LogStream.LOG, 0].last == 3


def test_recovery_from_any_torn_write(tmp_path: Path) -> None:
    """Cut the files anywhere behind the last acknowledged record: the next store goes on from there."""
    chunks = [LogChunk(LogStream.LOG, 0, 1, 2, b"a\nb\n"), LogChunk(LogStream.LOG, 1, 1, 1, b"x\n")]
    late = LogChunk(LogStream.LOG, 0, 3, 2, b"c\nd\n")
    sizes = _sizes_after(tmp_path / "reference", chunks), _sizes_after(tmp_path / "reference-2", [*chunks, late])
    for extra in range(1, 20):
        root = tmp_path / str(extra)
        store = LogStore(_files(root), "uid", 1)
        for chunk in (*chunks, late):
            store.append(chunk)
        store.close()
        budget = extra  # how many bytes of the last append reached the files, in the order of its writes
        for name in ("rank-0000.log", "job.log", ".journal"):
            kept = min(budget, sizes[1][name] - sizes[0][name])
            budget -= kept
            with (_files(root).directory / name).open("r+b") as file:
                file.truncate(sizes[0][name] + kept)
        store = LogStore(_files(root), "uid", 1)
        assert store.resumed
        assert store.append(late) == 4
        store.close()
        assert _files(root).rank_log(0).read_bytes() == b"a\nb\nc\nd\n"
        assert _files(root).job_log.read_bytes() == b"[0] a\n[0] b\n[1] x\n[0] c\n[0] d\n"


def test_more_ranks_than_files_may_be_open(tmp_path: Path) -> None:
    """Logs are closed and opened again; each rank's file has its lines in order."""
    store = LogStore(_files(tmp_path), "uid", 1, most_open=2)
    for first in (1, 2, 3):
        for rank in range(5):
            store.append(LogChunk(LogStream.LOG, rank, first, 1, b"%d\n" % first))
            store.append(LogChunk(LogStream.REPORT, rank, first, 1, b'{"step": %d, "time": 1.0}\n' % first))
    descriptors = [path.resolve() for path in Path("/proc/self/fd").iterdir()]
    assert sum(path.name.startswith("rank-") and tmp_path in path.parents for path in descriptors) == 2
    store.close()
    assert [_files(tmp_path).rank_log(rank).read_bytes() for rank in range(5)] == [b"1\n2\n3\n"] * 5
    assert len(_files(tmp_path).metrics.read_bytes().splitlines()) == 15


def test_repeated_chunks_change_nothing(tmp_path: Path) -> None:
    """A chunk that comes again, or again with more behind it, adds only what is new."""
    store = LogStore(_files(tmp_path), "uid", 1)
    assert store.append(LogChunk(LogStream.LOG, 2, 1, 2, b"a\nb\n")) == 2
    assert store.append(LogChunk(LogStream.LOG, 2, 1, 2, b"a\nb\n")) == 2
    assert store.append(LogChunk(LogStream.LOG, 2, 2, 2, b"b\nc\n")) == 3
    assert store.append(LogChunk(LogStream.LOG, 2, 1, 1, b"a\n")) == 3
    assert store.lines == 3
    store.close()
    assert store.files.rank_log(2).read_bytes() == b"a\nb\nc\n"


def test_lines_that_went_with_an_earlier_launcher(tmp_path: Path) -> None:
    """A gap means that acknowledged files are missing: the log names the lines."""
    store = LogStore(_files(tmp_path), "uid", 1)
    assert store.append(LogChunk(LogStream.LOG, 0, 8, 1, b"h\n")) == 8
    store.close()
    first, second = store.files.rank_log(0).read_text().splitlines()
    assert first.startswith("[ringtrain] lines 1 to 7 of rank 0 are missing")
    assert second == "h"


def test_another_job_of_the_same_name(tmp_path: Path) -> None:
    """The other job's logs are moved to another directory."""
    for uid in ("old", "new"):
        store = LogStore(_files(tmp_path), uid, 1)
        assert not store.resumed
        store.append(LogChunk(LogStream.LOG, 0, 1, 1, uid.encode() + b"\n"))
        store.close()
    assert _files(tmp_path).rank_log(0).read_text() == "new\n"
    assert (tmp_path / "default/job/1.earlier-1/rank-0000.log").read_text() == "old\n"


def test_reports_become_rows(tmp_path: Path) -> None:
    """Rank and attempt are added; an invalid report is left out, and the launcher's log mentions it once."""
    seen: list[tuple[int, object]] = []
    store = LogStore(_files(tmp_path), "uid", 4)
    store.on_report = lambda rank, report: seen.append((rank, report["step"]))
    rows = b'{"step": 1, "time": 2.5}\nnonsense\n{"step": 2, "time": 3.5}\n'
    assert store.append(LogChunk(LogStream.REPORT, 3, 1, 3, rows)) == 3
    store.close()
    assert [json.loads(row) for row in store.files.metrics.read_text().splitlines()] == [
        {"step": 1, "time": 2.5, "rank": 3, "attempt": 4},
        {"step": 2, "time": 3.5, "rank": 3, "attempt": 4},
    ]
    assert seen == [(3, 1), (3, 2)]


def test_the_first_loss_that_is_not_finite_is_logged(tmp_path: Path) -> None:
    """The line has rank and step, is also passed on, and stays when the launcher restarts."""
    merged: list[bytes] = []
    store = LogStore(_files(tmp_path), "uid", 1)
    store.on_merged = merged.append
    for step in (10, 11):
        row = b'{"step": %d, "time": 2.5, "notFinite": {"loss": "NaN"}}\n' % step
        store.append(LogChunk(LogStream.REPORT, 3, step - 9, 1, row))
    store.append(LogChunk(LogStream.LOG, 3, 1, 1, b"hello\n"))
    store.close()
    LogStore(_files(tmp_path), "uid", 1).close()
    line = b"[ringtrain] the loss of rank 3 is NaN at step 10\n"
    assert merged == [line, b"[3] hello\n"]
    assert store.files.job_log.read_bytes() == line + b"[3] hello\n"


@pytest.mark.parametrize(
    "row",
    [
        b'{"step": "three", "time": 1.0}',
        b'{"step": true, "time": 1.0}',
        b'{"step": 9223372036854775808, "time": 1.0}',
        b'{"step": 1, "time": NaN}',
        b'{"step": 1, "time": 1e999}',
        b'{"step": 1, "time": 1.0, "samples": "many"}',
        b'{"step": 1, "time": 1.0, "loss": [0.5]}',
        b'{"step": 1, "time": 1.0, "totalSteps": 2.5}',
        b'{"step": 1, "time": 1.0, "unit": 7}',
        b'{"step": 1, "time": 1.0, "metrics": [1]}',
        b'{"step": 1, "time": 1.0, "metrics": {"accuracy": "good"}}',
        b"[" * 60_000,
        b"\xff",
    ],
    ids=lambda row: row[:60].decode(errors="replace"),
)
def test_a_row_that_is_no_report_is_left_out(tmp_path: Path, row: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """The rank's other reports arrive, and the log names the first invalid row of each rank."""
    store = LogStore(_files(tmp_path), "uid", 1)
    seen: list[object] = []
    store.on_report = lambda rank, report: seen.append(report["step"])
    rows = row + b"\n" + row + b'\n{"step": 2, "time": 3.5, "loss": NaN}\n'
    assert store.append(LogChunk(LogStream.REPORT, 5, 1, 3, rows)) == 3
    store.close()
    assert seen == [2]
    (kept,) = store.files.metrics.read_text().splitlines()
    assert json.loads(kept) == {"step": 2, "time": 3.5, "loss": None, "rank": 5, "attempt": 1}
    (message,) = caplog.messages
    assert "rank 5" in message


def test_who_listens_cannot_spoil_the_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If a listener raises an exception, the line is in the files once, and the next lines reach the listener."""
    store = LogStore(_files(tmp_path), "uid", 1)
    told: list[object] = []

    def fail(*what: object) -> None:
        told.append(what)
        raise RuntimeError("listener")

    store.on_report = store.on_merged = fail
    rows = b'{"step": 1, "time": 1}\n{"step": 2, "time": 1}\n'
    for chunk in (LogChunk(LogStream.LOG, 0, 1, 1, b"a\n"), LogChunk(LogStream.REPORT, 0, 1, 2, rows)):
        for _ in range(2):
            assert store.append(chunk) == chunk.lines
    store.close()
    assert len(told) == 3
    assert len(caplog.records) == 1
    assert store.files.rank_log(0).read_bytes() == b"a\n"
    assert len(store.files.metrics.read_bytes().splitlines()) == 2


def test_a_full_disk_keeps_nothing_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If one file cannot be written, no file has the chunk, and the chunk can be sent again."""
    store = LogStore(_files(tmp_path), "uid", 1)
    store.append(LogChunk(LogStream.LOG, 0, 1, 1, b"a\n"))
    whole = store.files.job_log
    moved = whole.with_suffix(".moved")
    store._open[whole.name].close()
    store._open[whole.name] = open("/dev/full", "ab", buffering=0)  # noqa: SIM115
    with pytest.raises(OSError):
        store.append(LogChunk(LogStream.LOG, 0, 2, 1, b"b\n"))
    assert store.files.rank_log(0).read_bytes() == b"a\n"
    assert not moved.exists()
    store._open.pop(whole.name).close()
    assert store.append(LogChunk(LogStream.LOG, 0, 2, 1, b"b\n")) == 2
    store.close()
    assert whole.read_bytes() == b"[0] a\n[0] b\n"


def _files(root: Path) -> AttemptFiles:
    return AttemptFiles.of(root, "default", "job", 1)


def _sizes_after(root: Path, chunks: list[LogChunk]) -> dict[str, int]:
    store = LogStore(_files(root), "uid", 1)
    for chunk in chunks:
        store.append(chunk)
    store.close()
    return {path.name: path.stat().st_size for path in _files(root).directory.iterdir()}
