"""Files of ended runs of `dtj local`: each run's job with its last status, and its logs."""

import json
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringtrain_operator.errors import OperatorError

JOB_FILE = "job.json"


class NoSuchRun(OperatorError):
    """The local run does not exist, or it has no such log. The message lists the existing ones."""


@dataclass(frozen=True)
class PastLocalRun:
    """One run: its directory, and the job as an API server would store it."""

    directory: Path
    job: dict[str, Any]

    def log(self, rank: int | None, attempt: int | None) -> Path:
        """Return the path of the log of a rank, or of all ranks (None). Raises NoSuchRun."""
        folder = self._attempt(attempt)
        if not folder.is_dir():
            others = ", ".join(sorted(one.name for one in folder.parent.glob("*/"))) or "none"
            raise NoSuchRun(f"there are no logs of attempt {folder.name}; attempts in {folder.parent}: {others}")
        path: Path = folder / ("job.log" if rank is None else f"rank-{rank:04d}.log")
        if not path.is_file():
            existing = ", ".join(sorted(p.name for p in folder.glob("*.log"))) or "no log"
            silent = "no rank has written anything" if rank is None else f"rank {rank} has written nothing"
            raise NoSuchRun(f"{silent}; {folder} has {existing}")
        return path

    def _attempt(self, number: int | None) -> Path:
        meta = self.job["metadata"]
        wanted = number or (self.job.get("status") or {}).get("attempt") or 1
        folder: Path = self.directory / "logs" / meta["namespace"] / meta["name"] / str(wanted)
        return folder

    def pod_log(self, pod: str) -> Path:
        """Return the path of the output of a pod that outlives attempts. Raises NoSuchRun."""
        path = self.directory / "pods" / f"{pod}.log"
        if not path.is_file():
            existing = ", ".join(sorted(p.name for p in path.parent.glob("*.log"))) or "nothing"
            raise NoSuchRun(f"{path} does not exist; {path.parent} has {existing}")
        return path


def write_job(run_dir: Path, job: dict[str, Any], name: str = JOB_FILE) -> None:
    """Write the job as file `name`. A concurrent reader sees the old or the new file, never a part."""
    draft = run_dir / f"{name}.tmp"
    draft.write_text(json.dumps(job, indent=1), encoding="utf-8")
    os.replace(draft, run_dir / name)


def past_runs(runs: Path) -> list[PastLocalRun]:
    """Return all runs under `runs`, the newest first."""
    found = []
    for path in runs.glob(f"*/{JOB_FILE}"):
        try:
            job = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # the run is being removed, or the file is not a job
        if isinstance(job, dict) and {"metadata", "spec"} <= job.keys():
            found.append(PastLocalRun(path.parent, job))
    return sorted(found, key=lambda run: run.job["metadata"]["creationTimestamp"], reverse=True)


def newest_run(runs: Path, name: str) -> PastLocalRun:
    """Return the newest run of the job `name`. Raises NoSuchRun."""
    found = past_runs(runs)
    for run in found:
        if run.job["metadata"]["name"] == name:
            return run
    names = ", ".join(sorted({run.job["metadata"]["name"] for run in found})) or "none"
    raise NoSuchRun(f"{runs.resolve()} has no run of {name}; jobs that `dtj local` has run there: {names}")


def past_run_pod_lines(runs: Path, name: str, pod: str, tail: int | None) -> Iterator[bytes]:
    """Yield the lines, or the last `tail` lines, that a pod of the newest run of `name` wrote.

    They are unchanged bytes, of all processes of the pod. Raises NoSuchRun.
    """
    yield from _past_run_lines(newest_run(runs, name).pod_log(pod), tail)


def _past_run_lines(path: Path, tail: int | None) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            yield from file if tail is None else deque(file, tail)
    except OSError as exc:
        raise NoSuchRun(f"{path}: {exc.strerror}") from exc


@dataclass
class PastLocalRunTail:
    """Reads new lines of `<root>/<attempt>/job.log`. `root`: the job's directory in the log store."""

    root: Path
    attempt: int = 0
    offset: int = 0

    def lines(self, attempt: int) -> list[str]:
        """Return whole lines that are new since the last call, first those left of the previous attempt."""
        if attempt == self.attempt:
            return self._new_lines()
        left = self._new_lines()
        self.attempt, self.offset = attempt, 0
        return left + self._new_lines()

    def _new_lines(self) -> list[str]:
        try:
            with (self.root / str(self.attempt) / "job.log").open("rb") as file:
                file.seek(self.offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self.offset += len(whole)
        return whole.decode(errors="replace").splitlines()
