"""Runs `dtj local` as a separate process, and finds its remaining descendants when it has ended."""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil
import yaml

from support.commands import completed
from support.deadlines import patient

T = TypeVar("T")

# Ten times the time that a loaded machine needed.
DEADLINE_S = patient(240.0)


def until(found: Callable[[], T], deadline_s: float = DEADLINE_S) -> T:
    """Poll `found` until it returns a true value, and return that."""
    deadline = time.monotonic() + deadline_s
    while not (answer := found()):
        assert time.monotonic() < deadline, f"{found} was not true within {deadline_s:g} s"
        time.sleep(0.05)
    return answer


@dataclass
class Local:
    """A running `dtj local` and the processes that it has started."""

    process: subprocess.Popen[str]
    mark: str
    directory: Path
    manifest: Path
    output: str = field(default="")

    def finish(self, code: int) -> str:
        """Wait for the end and return the output. Assert that no process and no file in TMPDIR remains."""
        self.output, _ = self.process.communicate(timeout=DEADLINE_S)
        assert self.process.returncode == code, self.output
        assert self.processes() == []
        assert list((self.directory / "tmp").iterdir()) == []
        return self.output

    def processes(self) -> list[psutil.Process]:
        """Return every process with this run's marker in its environment, except zombies."""
        return [p for p in psutil.process_iter() if _environment(p).get("TEST_MARK") == self.mark]

    def rank(self, rank: int) -> psutil.Process | None:
        """Return the process of a rank, once it trains."""
        return next((p for p in self.processes() if _environment(p).get("RINGTRAIN_RANK") == str(rank)), None)

    def log(self, attempt: int, name: str = "job.log") -> str:
        """Return the path of a file of an attempt's log store."""
        (path,) = self.directory.glob(f"runs/*/logs/default/*/{attempt}/{name}")
        return path.read_text()

    def command(self, program: str, *words: str, code: int = 0) -> str:
        """Run one of our programs in the run's directory. Return its output; assert its exit code."""
        done = completed([str(Path(sys.executable).with_name(program)), *words], cwd=self.directory)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

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
