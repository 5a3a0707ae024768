"""Output of a job's launcher, in which all ranks' lines are merged. A node stores only its newest part."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from ringtrain_operator.errors import OperatorError, counted
from ringtrain_operator.observe.pods import termination_of, view_pod

from .session import ClusterAccess, Json

# Prefix of each rank's line in the launcher's output.
_MARK = re.compile(rb"\[(\d{1,9})\] ")


@dataclass(frozen=True)
class WantedLauncherOutput:
    """Log that the user requests. `attempt`: number of the attempt; None for the current attempt. `rank`: None for all
    ranks. `tail`: number of last lines; None for all lines. `reports`: read the ranks' reports instead of their output.
    """

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
        """Return the command that prints the requested log in a pod that mounts the log store.

        `program`: path of the container's `ringtrain`. `follow`: whether the command waits for new lines.
        """
        options = [f"--attempt={attempt}"]
        options += [f"--rank={self.rank}"] if self.rank is not None else []
        options += ["--reports"] if self.reports else []
        options += ["--follow"] if follow else []
        options += [f"--tail={self.tail}"] if self.tail is not None else []
        return [program, "logs", *options]


@dataclass
class PrintedLauncherOutput:
    """Number of lines and bytes of a log that the user has already seen. A single carriage return ends a line, too.

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
    """Error: the launcher's output was replaced since it was read, for example because its node rotated the file."""


@dataclass
class ShownLauncherOutput:
    """Counts of the lines that were found in a launcher's output. `by_rank`: number of lines of each rank. `wanted`:
    number of lines of the requested ranks. `last`: the last line that was new to the user, with its prefix."""

    by_rank: Counter[int] = field(default_factory=Counter)
    wanted: int = 0
    last: bytes = b""


@dataclass(frozen=True)
class MissingLauncherOutput:
    """Number of lines that are missing in a launcher's output. `is_guess`: the launcher did not report this number."""

    lines: int = 0
    written: int = 0
    author: str = "all ranks"
    is_guess: bool = False

    def __bool__(self) -> bool:
        return self.lines > 0

    def __str__(self) -> str:
        return (
            f"the launcher's output lacks {self.lines} of {counted(self.written, 'line')} that {self.author} wrote: "
            "its node has deleted the oldest ones"
        )


async def launcher_output(
    session: ClusterAccess,
    wanted: WantedLauncherOutput,
    shown: ShownLauncherOutput,
    printed: PrintedLauncherOutput,
) -> AsyncGenerator[bytes, None]:
    """Yield the requested lines that were not printed before. The lines of a single rank have no prefix.

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
                    raise OutputChanged(
                        f"the output of {wanted.pod} has changed since its last lines were read; read it from "
                        "the beginning"
                    )
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
    """Return how many lines of the ended launcher were not `shown`: its node deletes the oldest lines of its output."""
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
