"""Files that runs of `dtj local` leave behind: each run's job with its last status, and its logs."""

import json
import os
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ringtrain_operator.errors import OperatorError
from ringtrain_operator.spec.base import parse_time
from ringtrain_operator.spec.template import shape_problems
from ringtrain_operator.status.model import parse_status

JOB_FILE = "job.json"
_SHAPE = {
    "metadata": {"uid": str, "labels": {}, "annotations": {}},
    "spec": {"backend": str, "worker": {}},
    "status": {},
}


class NoSuchRun(OperatorError):
    """Error: the local run, or the requested log in it, does not exist. The message lists the existing ones."""


@dataclass(frozen=True)
class PastLocalRun:
    """One run of `dtj local`: its directory, and its job as an API server would store it."""

    directory: Path
    job: dict[str, Any]

    @property
    def name(self) -> str:
        """Name of the job."""
        return str(self.job["metadata"]["name"])

    def log(self, rank: int | None, attempt: int | None) -> Path:
        """Return the path of the log of a rank, or of all ranks (None). Raises NoSuchRun if there is no such log."""
        folder = self._attempt(attempt)
        if not folder.is_dir():
            others = ", ".join(sorted(one.name for one in folder.parent.glob("*/"))) or "none"
            raise NoSuchRun(f"attempt {folder.name} has no logs; {folder.parent} has logs of attempts: {others}")
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
        """Return the path of the output of a data worker or evaluator. Raises NoSuchRun if there is none."""
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


def read_job(run_dir: Path) -> dict[str, Any] | None:
    """Return the job of a run with its last status. Return None if the file is missing or holds no valid job: the run
    is being removed, or somebody has edited the file."""
    try:
        job = json.loads((run_dir / JOB_FILE).read_text(encoding="utf-8"))
        # Not parse_job: a job that the operator rejects has a run, too.
        if not isinstance(job, dict) or not _has_texts(job.get("metadata")) or shape_problems(job, "", _SHAPE):
            return None
        template = ((job.get("spec") or {}).get("worker") or {}).get("template")
        if template is None or shape_problems(template, ""):
            return None
        parse_time(job["metadata"]["creationTimestamp"])
        parse_status(job.get("status"))
    except (OSError, ValueError, RecursionError):  # a ValidationError is a ValueError
        return None
    return job


def _has_texts(metadata: object) -> bool:
    wanted = ("name", "namespace", "creationTimestamp")
    return isinstance(metadata, dict) and all(isinstance(metadata.get(key), str) for key in wanted)


def past_runs(runs: Path) -> list[PastLocalRun]:
    """Return all runs under `runs`, the newest first."""
    jobs = ((path.parent, read_job(path.parent)) for path in runs.glob(f"*/{JOB_FILE}"))
    found = [PastLocalRun(directory, job) for directory, job in jobs if job is not None]
    found.sort(key=lambda run: run.job["metadata"]["creationTimestamp"], reverse=True)
    return list(_with_distinct_uids(found))


def unreadable_runs_text(runs: Path) -> str:
    """Return a line about the runs under `runs` whose job.json is damaged; empty if there are none."""
    damaged = sorted(path.parent.name for path in runs.glob(f"*/{JOB_FILE}") if read_job(path.parent) is None)
    if not damaged:
        return ""
    return f"{JOB_FILE} is damaged in {', '.join(damaged)}; ringtrain list and ringtrain logs still read these runs"


def _with_distinct_uids(runs: Iterable[PastLocalRun]) -> Iterator[PastLocalRun]:
    """Yield the runs. A run whose folder is a copy of another run's folder gets a uid of its own."""
    known = set()
    for run in runs:
        uid = run.job["metadata"].get("uid")
        if uid in known:
            metadata = {**run.job["metadata"], "uid": f"{uid}-{run.directory.name}"}
            run = replace(run, job={**run.job, "metadata": metadata})
        known.add(uid)
        yield run


def newest_run(runs: Path, name: str) -> PastLocalRun:
    """Return the newest run of the job `name`, or else the run in the folder `name`, as `ringtrain list` names runs.

    Raises NoSuchRun if there is none.
    """
    found = past_runs(runs)
    for run in (*(one for one in found if one.name == name), *(one for one in found if one.directory.name == name)):
        return run
    names = ", ".join(sorted({run.name for run in found})) or "none"
    damaged = unreadable_runs_text(runs)
    more = f". {damaged}" if damaged else ""
    raise NoSuchRun(f"{runs.resolve()} has no run of {name}; jobs that `dtj local` has run there: {names}{more}")


def repeated_run_names(runs: Path) -> dict[str, str]:
    """Return the names of the folders, by the jobs' uids, of all runs under `runs` of jobs that ran more than once."""
    found = past_runs(runs)
    counts = Counter(run.name for run in found)
    return {str(run.job["metadata"].get("uid")): run.directory.name for run in found if counts[run.name] > 1}


def past_run_pod_lines(run: PastLocalRun, pod: str, tail: int | None) -> Iterator[bytes]:
    """Yield all lines, or the last `tail` lines, of a data worker's or evaluator's output.

    The lines are unchanged bytes, and come from all processes of the pod. Raises NoSuchRun.
    """
    yield from _past_run_lines(run.pod_log(pod), tail)


def _past_run_lines(path: Path, tail: int | None) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            yield from file if tail is None else deque(file, tail)
    except OSError as exc:
        raise NoSuchRun(f"{path}: {exc.strerror}") from exc


@dataclass
class PastLocalRunTail:
    """Reader of the lines that are appended to `<root>/<attempt>/job.log`. `root`: the job's directory of logs."""

    root: Path
    attempt: int = 0
    offset: int = 0

    def lines(self, attempt: int) -> list[str]:
        """Return the complete lines written since the last call, first the unread ones of the previous attempt."""
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
