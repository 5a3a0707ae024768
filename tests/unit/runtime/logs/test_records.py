"""Splitting output into records does not change any byte, wherever reads end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringtrain_job.logs.records import MAX_RECORD, LogRecordSplitter, count_records, prefixed_records, skip_records

OUTPUT = st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\r\n", b"\xff", b""]), max_size=30)


@given(pieces=OUTPUT)
def test_records_joined_are_the_output(pieces: list[bytes]) -> None:
    """For any split of the output into reads, the joined records are the output, and the counts agree."""
    splitter = LogRecordSplitter()
    runs = [splitter.feed(piece) for piece in pieces] + [splitter.flush()]
    whole = b"".join(pieces)
    assert b"".join(runs) == whole
    assert sum(count_records(run) for run in runs) == count_records(whole)


@given(pieces=OUTPUT, count=st.integers(0, 40))
def test_skipping_records(pieces: list[bytes], count: int) -> None:
    """After n records are skipped, n records fewer are left."""
    data = b"".join(pieces)
    rest = skip_records(data, count)
    assert data.endswith(rest)
    assert count_records(rest) == max(0, count_records(data) - count)


@given(pieces=OUTPUT.filter(lambda pieces: any(pieces)))
def test_the_merged_log_has_a_line_for_every_record(pieces: list[bytes]) -> None:
    """Each record is one line behind its rank."""
    data = b"".join(pieces)
    lines = prefixed_records(12, data).split(b"\n")
    assert lines.pop() == b""
    assert len(lines) == count_records(data)
    assert all(line.startswith(b"[12] ") for line in lines)


@pytest.mark.parametrize(
    ("data", "merged"),
    [
        pytest.param(b"a\nb\n", b"[3] a\n[3] b\n", id="lines"),
        pytest.param(b"a\r\nb", b"[3] a\n[3] b\n", id="windows-and-unfinished"),
        pytest.param(b"1%\r2%\r", b"[3] 1%\n[3] 2%\n", id="progress-bar"),
        pytest.param(b"\n", b"[3] \n", id="empty-line"),
    ],
)
def test_prefixes(data: bytes, merged: bytes) -> None:
    """Records in job.log have a prefix."""
    assert prefixed_records(3, data) == merged


def test_a_line_is_held_back_until_it_ends() -> None:
    """An unfinished line waits; a very long one does not."""
    splitter = LogRecordSplitter()
    assert splitter.feed(b"half") == b""
    assert splitter.pending
    assert splitter.feed(b" done\nnext") == b"half done\n"
    assert splitter.feed(b"x" * MAX_RECORD) == b"next" + b"x" * MAX_RECORD
    assert not splitter.pending


def test_a_carriage_return_waits_for_its_newline() -> None:
    """`\\r\\n` cut in two by a read is one line break."""
    splitter = LogRecordSplitter()
    assert splitter.feed(b"line\r") == b""
    assert splitter.feed(b"\nnext\r") == b"line\r\n"
    assert splitter.feed(b"more") == b"next\r"
