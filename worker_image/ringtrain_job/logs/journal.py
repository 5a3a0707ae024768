"""Journal of the log store: after each write to log files, one record with their valid sizes.

A launcher that is killed between two writes leaves bytes in a file that the journal does not contain. Its successor
truncates every file to its last journaled size and sends the agents the durable sequence numbers. Truncated records
were never acknowledged, so their agents still have them. The journal is written to the operating system without fsync:
it survives the death of the process, but not of the machine.
"""

import json
import struct
import zlib
from dataclasses import dataclass, field
from enum import IntEnum

_RECORD = struct.Struct("<BIQQQ")
_CHECKSUM = struct.Struct("<I")
RECORD_SIZE = _RECORD.size + _CHECKSUM.size


class LogStream(IntEnum):
    """Output streams of a rank: log lines and reports. The numbers are those of `Chunk.Kind` in protobuf."""

    LOG = 0
    REPORT = 1


@dataclass(frozen=True)
class JournalEntry:
    """Record of one write of log lines or reports.

    `stream`: stream of the records that were written. `last`: sequence number of the last stored line or report.
    `own_size`: size of the stream's file after the write. `job_size`: size of job.log after the write. The content of
    the files is valid up to these sizes.
    """

    stream: LogStream
    rank: int
    last: int
    own_size: int
    job_size: int


@dataclass(frozen=True)
class RecoveredJournal:
    """Valid content of a journal: newest entry by stream, file sizes, and how many bytes of the journal are valid.

    `uid` is None if the journal lacks even its header.
    """

    uid: str | None
    entries: dict[tuple[LogStream, int], JournalEntry] = field(default_factory=dict)
    job_size: int = 0
    metrics_size: int = 0
    good_bytes: int = 0


def journal_header(uid: str) -> bytes:
    """Return the first line of a journal. It contains the job's UID."""
    return json.dumps({"version": 1, "uid": uid}).encode() + b"\n"


def encode_journal_entry(entry: JournalEntry) -> bytes:
    """Return `entry` as a binary record with a checksum."""
    body = _RECORD.pack(entry.stream, entry.rank, entry.last, entry.own_size, entry.job_size)
    return body + _CHECKSUM.pack(zlib.crc32(body))


def recover_journal(data: bytes) -> RecoveredJournal:
    """Return the content of a journal, up to its first incomplete or damaged record."""
    line, newline, _ = data.partition(b"\n")
    if not newline:
        return RecoveredJournal(None)
    try:
        uid = str(json.loads(line)["uid"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return RecoveredJournal(None)
    entries: dict[tuple[LogStream, int], JournalEntry] = {}
    job_size = metrics_size = 0
    position = len(line) + 1
    while (entry := _decode_journal_record(data[position : position + RECORD_SIZE])) is not None:
        entries[entry.stream, entry.rank] = entry
        job_size = entry.job_size
        if entry.stream is LogStream.REPORT:
            metrics_size = entry.own_size
        position += RECORD_SIZE
    return RecoveredJournal(uid, entries, job_size, metrics_size, position)


def _decode_journal_record(record: bytes) -> JournalEntry | None:
    if len(record) < RECORD_SIZE:
        return None
    body, (checksum,) = record[: _RECORD.size], _CHECKSUM.unpack(record[_RECORD.size :])
    if zlib.crc32(body) != checksum:
        return None
    stream, rank, last, own_size, job_size = _RECORD.unpack(body)
    return JournalEntry(LogStream(stream), rank, last, own_size, job_size)
