r"""Splitting of a rank's output into records, mostly lines, which are counted, sent and prefixed.

A record is a line with its line break, which is `\n`, `\r\n`, or a `\r` alone (a progress bar redraws itself with it).
A line without an end becomes a record when it is 64 KiB long, when its writer has been silent for a while, and when the
output ends. Bytes are never changed: the joined records of a rank are its output.
"""

import re

MAX_RECORD = 64 << 10
# Number of bytes at a log's end that `last_record_lines` needs.
TAIL_BYTES = 8 << 10
_TAIL_LINES = 20
_TAIL_LINE_CHARS = 400

_RECORD = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r|\Z)")
_BREAK = re.compile(rb"\r\n|\r")
_MARK = re.compile(rb"\[(\d{1,9})\] ")


def count_breaks(data: bytes) -> int:
    """Return the number of line breaks in `data`."""
    newlines = data.count(b"\n")
    if b"\r" not in data:
        return newlines
    return newlines + data.count(b"\r") - data.count(b"\r\n")


def count_records(data: bytes) -> int:
    """Return the number of records in `data`; an unfinished last line counts as one."""
    if not data:
        return 0
    return count_breaks(data) + (not data.endswith((b"\n", b"\r")))


def skip_records(data: bytes, count: int) -> bytes:
    """Return `data` without its first `count` records."""
    position = 0
    for _ in range(count):
        match = _RECORD.match(data, position)
        if match is None or match.end() == position:
            return b""
        position = match.end()
    return data[position:]


def prefixed_records(rank: int, data: bytes) -> bytes:
    """Return the records in `data` as lines of the merged log: each begins with `[rank] ` and ends with a newline."""
    if b"\r" in data:
        data = _BREAK.sub(b"\n", data)
    mark = b"[%d] " % rank
    body = data[:-1] if data.endswith(b"\n") else data
    return mark + body.replace(b"\n", b"\n" + mark) + b"\n"


def rank_of_line(line: bytes) -> int | None:
    """Return the rank with which a line of the merged log begins; None if it has none."""
    mark = _MARK.match(line)
    return None if mark is None else int(mark[1])


def last_record_lines(end: bytes) -> tuple[str, ...]:
    """Return the last lines of `end`, the end of a log, as text: at most 20, each of at most 400 characters."""
    lines = end.decode("utf-8", "replace").splitlines()[-_TAIL_LINES:]
    return tuple(line[:_TAIL_LINE_CHARS] for line in lines)


class LogRecordSplitter:
    """Splitter of one rank's output, which buffers an unfinished line."""

    def __init__(self) -> None:
        self._rest = b""

    @property
    def pending(self) -> bool:
        """Whether an unfinished line is buffered."""
        return bool(self._rest)

    def feed(self, data: bytes) -> bytes:
        """Return the records that are complete with `data`; buffer the unfinished last line."""
        data = self._rest + data
        # A final `\r` may be the first half of `\r\n`: wait for the next byte.
        end = max(data.rfind(b"\n"), data.rfind(b"\r", 0, len(data) - 1)) + 1
        if len(data) - end >= MAX_RECORD:
            end = len(data)
        self._rest = data[end:]
        return data[:end]

    def flush(self) -> bytes:
        """Return the buffered unfinished line as a record, and empty the buffer."""
        rest, self._rest = self._rest, b""
        return rest
