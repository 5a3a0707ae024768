"""Windows of the merged log (job.log) for the live page: newest lines, earlier lines, and lines added since."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ringtrain.errors import counted
from ringtrain_job.logs.fields import open_existing

_CHUNK: Final = 1 << 20
# Limit of one search: a rare text in a log of several GiB is found by several searches.
MOST_READ: Final = 16 << 20
WINDOW_LINES: Final = 1000
# Limit of a line on the page; the log has lines of up to 64 KiB.
LINE_CHARS: Final = 2000


@dataclass(frozen=True)
class WantedPageLines:
    """Filter of log lines: those of `rank` (None: of all ranks) that contain `text`, ignoring case."""

    rank: int | None = None
    text: str = ""

    @property
    def matches(self) -> Callable[[str], bool]:
        """Function that returns whether a line of the merged log passes this filter."""
        mark, text = "" if self.rank is None else f"[{self.rank}] ", self.text.lower()
        return lambda line: line.startswith(mark) and text in line.lower()


@dataclass(frozen=True)
class PageLogWindow:
    """Matching lines of a log between bytes `begin` and `end`. `begin` is 0 if no earlier lines exist.

    `skipped`: number of bytes between the previous window and this one that were not searched.
    """

    lines: tuple[str, ...]
    begin: int
    end: int
    skipped: int = 0

    def json(self) -> dict[str, Any]:
        """Return the window as an object of the page's JSON."""
        return {"lines": self.lines, "before": self.begin, "skipped": self.skipped}


def log_window_before(path: Path, wanted: WantedPageLines, end: int | None = None) -> PageLogWindow:
    """Return the last matching lines before byte `end`, at most WINDOW_LINES. `end` None: the end of the last complete
    line.

    Reads at most MOST_READ bytes. So the window may be empty although earlier lines match.
    """
    log = open_existing(path)
    if log is None:
        return PageLogWindow((), 0, 0)
    found: deque[str] = deque()
    matches = wanted.matches
    with log:
        position = log.seek(0, 2)
        end = _last_line_end(log, position) if end is None else min(end, position)
        begin, rest = end, b""
        while begin > 0 and end - begin < MOST_READ:
            size = min(_CHUNK, begin)
            log.seek(begin - size)
            data = log.read(size) + rest
            begin -= size
            cut = 0 if begin == 0 else data.find(b"\n") + 1
            rest, whole = data[:cut], data[cut:]
            lines = whole.split(b"\n")[:-1]
            for number in range(len(lines) - 1, -1, -1):
                if matches(line := lines[number].decode(errors="replace")):
                    found.appendleft(shortened_line(line))
                    if len(found) == WINDOW_LINES:
                        return PageLogWindow(tuple(found), begin + cut + sum(map(len, lines[:number])) + number, end)
    return PageLogWindow(tuple(found), begin + len(rest), end)


def log_window_after(path: Path, wanted: WantedPageLines, begin: int) -> PageLogWindow:
    """Return matching complete lines after byte `begin`. Of more than 1 MiB, only the newest part is read."""
    log = open_existing(path)
    if log is None:
        return PageLogWindow((), begin, begin)
    with log:
        size = log.seek(0, 2)
        start = begin
        if size - begin > _CHUNK:
            log.seek(size - _CHUNK)
            log.readline()
            start = log.tell()
        log.seek(start)
        data = log.read(_CHUNK)
    end, matches = start + data.rfind(b"\n") + 1, wanted.matches
    found, position = [], start
    for raw in data[: end - start].split(b"\n")[:-1]:
        if matches(line := raw.decode(errors="replace")):
            found.append((position, shortened_line(line)))
        position += len(raw) + 1
    if len(found) > WINDOW_LINES:
        found = found[-WINDOW_LINES:]
        start = found[0][0]
    return PageLogWindow(tuple(line for _, line in found), start, end, start - begin)


def shortened_line(line: str) -> str:
    """Return the first LINE_CHARS characters of a line; if it is longer, append the number of omitted characters."""
    more = len(line) - LINE_CHARS
    return line if more <= 0 else f"{line[:LINE_CHARS]} … ({counted(more, 'more character')})"


def _last_line_end(log: Any, position: int) -> int:
    """Return the position after the last newline before `position`; 0 without a newline."""
    while position > 0:
        size = min(_CHUNK, position)
        log.seek(position - size)
        found: int = log.read(size).rfind(b"\n")
        if found >= 0:
            return position - size + found + 1
        position -= size
    return 0
