"""Ranks' lines in the output of a job's launcher, of which its node keeps only the newest part."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from ringtrain_operator.errors import OperatorError
from ringtrain_operator.observe.pods import termination_of, view_pod

from .session import ClusterAccess, Json

# What stands before each rank's line in the launcher's output.
_MARK = re.compile(rb"\[(\d{1,9})\] ")


@dataclass(frozen=True)
class WantedLauncherOutput:
    """What the user asked for. `attempt` None: the present one. `reports`: these in place of the log."""

    name: str
    rank: int | None
    attempt: int | None
    follow: bool
    tail: int | None
    reports: bool = False

    @property
    def pod(self) -> str:
        """The launcher's pod."""
        return f"{self.name}-launcher"

    def command(self, program: str, attempt: int, *, follow: bool) -> list[str]:
        """What prints it where the log store is mounted. `program`: the container's `ringtrain`."""
        options = [f"--attempt={attempt}"]
        options += [f"--rank={self.rank}"] if self.rank is not None else []
        options += ["--reports"] if self.reports else []
        options += ["--follow"] if follow else []
        options += [f"--tail={self.tail}"] if self.tail is not None else []
        return [program, "logs", *options]


@dataclass
class PrintedLauncherOutput:
    """What the user has seen already; a line ends where it does for the launcher: a lone return ends one, too.

    `last`: the last line, with its mark, where lines came from the launcher's output.
    """

    lines: int = 0
    size: int = 0
    last: bytes = b""
    _after_return: bool = False

    def feed(self, chunk: bytes) -> None:
        """More of the stream was printed."""
        self.size += len(chunk)
        self.lines += chunk.count(b"\n") + chunk.count(b"\r") - chunk.count(b"\r\n")
        self.lines -= self._after_return and chunk.startswith(b"\n")
        self._after_return = chunk.endswith(b"\r")


class OutputChanged(OperatorError):
    """The output is not the one that was read before: its node has put older lines away, or it began anew."""


@dataclass
class ShownLauncherOutput:
    """What of ranks' lines an output had: all of them by rank, and how many were wanted."""

    by_rank: Counter[int] = field(default_factory=Counter)
    wanted: int = 0
    last: bytes = b""


@dataclass(frozen=True)
class MissingLauncherOutput:
    """Lines that the launcher wrote and its output does not have. `is_guess`: it left no word of how many."""

    lines: int = 0
    written: int = 0
    whose: str = "all ranks"
    is_guess: bool = False

    def __bool__(self) -> bool:
        return self.lines > 0

    def __str__(self) -> str:
        return (
            f"{self.lines} of the {self.written} lines that {self.whose} wrote are no longer in the launcher's "
            "output, the oldest ones: its node keeps only so much"
        )


async def launcher_output(
    session: ClusterAccess,
    wanted: WantedLauncherOutput,
    shown: ShownLauncherOutput,
    printed: PrintedLauncherOutput,
) -> AsyncGenerator[bytes, None]:
    """The wanted lines: all with their marks, or one rank's without, and without what was printed before.

    `shown` counts them meanwhile. With a tail of one rank they come at the end.
    """
    mark = b"" if wanted.rank is None else b"[%d] " % wanted.rank
    last: deque[bytes] = deque(maxlen=wanted.tail)
    tail = None if mark else wanted.tail  # one rank's last lines may lie anywhere
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
                    raise OutputChanged(f"what {wanted.pod} wrote is not what it was")
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
    """What the launcher, which has ended, says it wrote beyond what was `shown`; a node drops the oldest."""
    if wanted.tail is not None and shown.wanted >= wanted.tail:
        return MissingLauncherOutput()
    termination = termination_of(view_pod(pod), attempt)
    by_rank, total = termination.get("rankLogLines"), termination.get("logLines")
    if wanted.rank is not None and isinstance(by_rank, list) and wanted.rank < len(by_rank):
        written, seen, whose = by_rank[wanted.rank], shown.by_rank[wanted.rank], f"rank {wanted.rank}"
    else:
        written, seen, whose = total, shown.by_rank.total(), "all ranks"
    if not isinstance(written, int):
        return MissingLauncherOutput(is_guess=True)
    return MissingLauncherOutput(max(0, written - seen), written, whose)
