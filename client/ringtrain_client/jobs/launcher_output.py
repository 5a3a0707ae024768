"""Ranks' lines in the output of a job's launcher. A node stores only the newest part of the output."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from ringtrain_operator.errors import OperatorError
from ringtrain_operator.observe.pods import termination_of, view_pod

from .session import ClusterAccess, Json

# Prefix of each rank's line in the launcher's output.
_MARK = re.compile(rb"\[(\d{1,9})\] ")


@dataclass(frozen=True)
class WantedLauncherOutput:
    """The user's request. `attempt`: number of the attempt, or None for the current attempt. `reports`: whether to
    read the ranks' reports instead of the log."""

    name: str
    rank: int | None
    attempt: int | None
    follow: bool
    tail: int | None
    reports: bool = False

    @property
    def pod(self) -> str:
        """Name of the launcher's pod."""
        return f"{self.name}-launcher"

    def command(self, program: str, attempt: int, *, follow: bool) -> list[str]:
        """Return the command that prints the log where the log store is mounted.

        `program`: path of the container's `ringtrain`.
        """
        options = [f"--attempt={attempt}"]
        options += [f"--rank={self.rank}"] if self.rank is not None else []
        options += ["--reports"] if self.reports else []
        options += ["--follow"] if follow else []
        options += [f"--tail={self.tail}"] if self.tail is not None else []
        return [program, "logs", *options]


@dataclass
class PrintedLauncherOutput:
    """The part that the user has already seen. As in the launcher, a single carriage return also ends a line.

    `last`: the last line with its prefix, if the lines came from the launcher's output.
    """

    lines: int = 0
    size: int = 0
    last: bytes = b""
    _after_return: bool = False

    def feed(self, chunk: bytes) -> None:
        """Count a chunk that was printed."""
        self.size += len(chunk)
        self.lines += chunk.count(b"\n") + chunk.count(b"\r") - chunk.count(b"\r\n")
        self.lines -= self._after_return and chunk.startswith(b"\n")
        self._after_return = chunk.endswith(b"\r")


class OutputChanged(OperatorError):
    """The output differs from that read before: its node has rotated the file, or the output is a new one."""


@dataclass
class ShownLauncherOutput:
    """Lines that an output had: the number for each rank, and the number of requested lines."""

    by_rank: Counter[int] = field(default_factory=Counter)
    wanted: int = 0
    last: bytes = b""


@dataclass(frozen=True)
class MissingLauncherOutput:
    """Lines that the launcher wrote and its output lacks. `is_guess`: the launcher did not report their number."""

    lines: int = 0
    written: int = 0
    author: str = "all ranks"
    is_guess: bool = False

    def __bool__(self) -> bool:
        return self.lines > 0

    def __str__(self) -> str:
        return (
            f"{self.lines} of the {self.written} lines that {self.author} wrote are no longer in the launcher's "
            "output: its node has deleted the oldest ones"
        )


async def launcher_output(
    session: ClusterAccess,
    wanted: WantedLauncherOutput,
    shown: ShownLauncherOutput,
    printed: PrintedLauncherOutput,
) -> AsyncGenerator[bytes, None]:
    """Yield the requested lines without those printed before: all lines with prefixes, or one rank's without.

    `shown` counts the lines. The last lines of one rank (`tail`) are yielded at the end.
    """
    mark = b"" if wanted.rank is None else b"[%d] " % wanted.rank
    last: deque[bytes] = deque(maxlen=wanted.tail)
    tail = None if mark else wanted.tail  # one rank's last lines may be anywhere in the output
    lines = session.api.pod_log(session.namespace, wanted.pod, follow=wanted.follow, tail_lines=tail)
    async with aclosing(lines):
        async for line in lines:
            found = _MARK.match(line)
            if found:
                shown.by_rank[int(found[1])] += 1
            if not line.startswith(mark):
                continue
            shown.wanted += 1
            if shown.wanted <= printed.lines:
                if shown.wanted == printed.lines and printed.last and line != printed.last:
                    raise OutputChanged(f"the output of {wanted.pod} has changed since it was read")
                continue
            shown.last = line
            if mark and wanted.tail is not None:
                last.append(line.removeprefix(mark))
            else:
                yield line.removeprefix(mark)
    for line in last:
        yield line


def missing_lines(
    pod: Json, attempt: int, wanted: WantedLauncherOutput, shown: ShownLauncherOutput
) -> MissingLauncherOutput:
    """Return the lines that the ended launcher reports and that were not `shown`. A node deletes the oldest."""
    if wanted.tail is not None and shown.wanted >= wanted.tail:
        return MissingLauncherOutput()
    termination = termination_of(view_pod(pod), attempt)
    by_rank, total = termination.get("rankLogLines"), termination.get("logLines")
    if wanted.rank is not None and isinstance(by_rank, list) and wanted.rank < len(by_rank):
        written, seen, author = by_rank[wanted.rank], shown.by_rank[wanted.rank], f"rank {wanted.rank}"
    else:
        written, seen, author = total, shown.by_rank.total(), "all ranks"
    if not isinstance(written, int):
        return MissingLauncherOutput(is_guess=True)
    return MissingLauncherOutput(max(0, written - seen), written, author)
