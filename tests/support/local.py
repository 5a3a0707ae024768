"""`dtj local` as a user runs it: a process of its own, whose descendants are counted when it has ended."""

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil
import yaml

from support.deadlines import patient

T = TypeVar("T")

# Ten times what a loaded machine was seen to need.
DEADLINE_S = patient(240.0)


def until(found: Callable[[], T], deadline_s: float = DEADLINE_S) -> T:
    """The first true answer of `found`, asked again and again until the deadline."""
    deadline = time.monotonic() + deadline_s
    while not (answer := found()):
        assert time.monotonic() < deadline, f"{found} was not true within {deadline_s:g} s"
        time.sleep(0.05)
    return answer


@dataclass
class Local:
    """A running `dtj local`, and everything it started."""

    process: subprocess.Popen[str]
    mark: str
    directory: Path
    manifest: Path
    output: str = field(default="")

    def finish(self, code: int) -> str:
        """Wait for the end; returns what was printed. Nothing that was started is left, in memory or in TMPDIR."""
        self.output, _ = self.process.communicate(timeout=DEADLINE_S)
        assert self.process.returncode == code, self.output
        assert self.processes() == []
        assert list((self.directory / "tmp").iterdir()) == []
        return self.output

    def processes(self) -> list[psutil.Process]:
        """Every process that carries this run's mark in its environment, zombies apart."""
        return [p for p in psutil.process_iter() if _environment(p).get("TEST_MARK") == self.mark]

    def rank(self, rank: int) -> psutil.Process | None:
        """The process of a rank, once it trains."""
        return next((p for p in self.processes() if _environment(p).get("RINGTRAIN_RANK") == str(rank)), None)

    def log(self, attempt: int, name: str = "job.log") -> str:
        """A file of an attempt's log store."""
        (path,) = self.directory.glob(f"runs/*/logs/default/*/{attempt}/{name}")
        return path.read_text()

    def save(self, **spec: Any) -> None:
        """Change the manifest on disk as an editor does."""
        changed = yaml.safe_load(self.manifest.read_text())
        changed["spec"].update(spec)
        draft = self.manifest.with_suffix(".new")
        draft.write_text(yaml.safe_dump(changed))
        draft.replace(self.manifest)


Start = Callable[..., Local]
"""Starts a job of two workers with one rank each: `start(*command, **spec)`."""


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return {} if process.status() == psutil.STATUS_ZOMBIE else process.environ()
    except psutil.Error:
        return {}
