"""Runs below a folder, side by side: what each was, and in what they differ."""

import fcntl
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ringtrain.shared.formats import duration
from ringtrain_job.logs.about import read_run_description
from ringtrain_job.logs.layout import AttemptFiles
from ringtrain_job.logs.reading import LogMissing, find_log_attempt, find_logs
from ringtrain_page.access import kept_page
from ringtrain_page.summary import brief_attempt, summarize_page

# Colours of the page.
MOST_COMPARED: Final = 4
# A state that no outcome has: a launcher has the run's folder.
RUNNING: Final = "Running"


@dataclass(frozen=True)
class PageRun:
    """The newest attempt of a job. `state`: its outcome, `Running`, or `Killed` where no launcher lives to tell.

    `loss`: a word where it is not finite. `speed`: samples, or what `unit` says, per second.
    `began`, `ended`: seconds since the epoch, as far as they are known; of a run that goes on its last sign.
    """

    name: str
    files: AttemptFiles
    state: str
    ranks: int | None
    step: int | None
    total_steps: int | None
    loss: float | str | None
    speed: float | None
    unit: str
    began: float | None
    ended: float | None

    def document(self) -> dict[str, Any]:
        """As JSON: for programs, and for the page of runs."""
        return {
            "name": self.name,
            "state": self.state,
            "ranks": self.ranks,
            "step": self.step,
            "totalSteps": self.total_steps,
            "loss": self.loss,
            "speed": self.speed,
            "unit": self.unit,
            "began": self.began,
            "seconds": self.took_s,
            "directory": str(self.files.directory),
        }

    @property
    def took_s(self) -> float | None:
        """Seconds from the beginning to the end."""
        return None if self.began is None or self.ended is None else self.ended - self.began


def find_runs(where: Path) -> list[PageRun]:
    """All runs in `where` or some levels below it, the newest first."""
    newest: dict[Path, Path] = {}
    for log in find_logs(where):
        attempt = log.parent
        if attempt.name.isdecimal():
            known = newest.get(attempt.parent)
            newest[attempt.parent] = max(attempt, known or attempt, key=lambda path: int(path.name))
    found = [_page_run(AttemptFiles(attempt), _page_run_name(job, where)) for job, attempt in newest.items()]
    return sorted(found, key=lambda run: run.began or 0.0, reverse=True)


def find_run(name: str, where: Path) -> PageRun:
    """The run of that name below `where`, or in the folder of that name. Raises LogMissing."""
    if (named := next((run for run in find_runs(where) if name in (run.name, Path(run.name).name)), None)) is not None:
        return named
    if Path(name).is_dir():
        files = find_log_attempt(Path(name), None)
        return _page_run(files, files.directory.parent.name)
    known = ", ".join(run.name for run in find_runs(where)[:5]) or "none"
    raise LogMissing(f"{name} is neither a folder nor a run below {where}; the newest runs there: {known}")


def _page_run_name(job: Path, where: Path) -> str:
    inside = job.relative_to(where).as_posix() if job != where else job.name
    return inside.removeprefix("local/")


def _page_run(files: AttemptFiles, name: str) -> PageRun:
    brief = brief_attempt(files)
    outcome, last = brief["outcome"], brief["last"]
    progress = (outcome or {}).get("progress") or last
    return PageRun(
        name=name,
        files=files,
        state=str(outcome["outcome"]) if outcome else RUNNING if _is_run_held(files) else "Killed",
        ranks=(outcome or kept_page(files)).get("worldSize"),
        step=brief["step"],
        total_steps=progress.get("totalSteps"),
        loss=_page_run_loss(progress),
        speed=_page_run_number(progress.get("samplesPerSecond")),
        unit=str(progress.get("unit") or "samples"),
        began=brief["began"],
        ended=brief["ended"],
    )


def _page_run_loss(progress: dict[str, Any]) -> float | str | None:
    found = (progress.get("notFinite") or {}).get("loss")
    if found:
        return str(found["value"] if isinstance(found, dict) else found)
    return _page_run_number(progress.get("loss"))


def _page_run_number(value: object) -> float | None:
    return value if isinstance(value, int | float) else None


def _is_run_held(files: AttemptFiles) -> bool:
    """Whether a launcher has the journal open: it holds a lock for as long as it lives."""
    with suppress(OSError), files.journal.open("rb") as journal:
        try:
            fcntl.flock(journal, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def compare_page_runs(runs: Sequence[PageRun]) -> dict[str, Any]:
    """What the page shows of several runs: facts and differences by row, curves with a line for each run."""
    documents = [summarize_page(run.files) for run in runs]
    abouts = [_flat_run_config(read_run_description(run.files)) for run in runs]
    names = list(dict.fromkeys(name for about in abouts for name in about))
    rows = [(name, [about.get(name, "") for about in abouts]) for name in names]
    curves: dict[str, dict[str, Any]] = {}
    for run, document in zip(runs, documents, strict=True):
        for curve in document["curves"]:
            into = curves.setdefault(curve["name"], {"name": curve["name"], "of": curve["of"], "series": []})
            line = {"name": run.name, "points": curve["points"], "bad": curve["bad"], "axes": document["axes"]}
            into["series"].append(line)
    return {
        "runs": [run.name for run in runs],
        "facts": [(name, [fact(run) for run in runs]) for name, fact in FACTS.items()],
        "differences": [(name, values) for name, values in rows if len(set(values)) > 1],
        "curves": list(curves.values()),
    }


def _flat_run_config(about: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    found |= {name: str(about[name]) for name in ("image", "imageID", "directory", "commit") if name in about}
    found |= {"command": " ".join(about["command"])} if "command" in about else {}
    for part, prefix in (("versions", "version of "), ("config", "")):
        found |= {f"{prefix}{name}": str(value) for name, value in about.get(part, {}).items()}
    return found


def shown_run_loss(run: PageRun) -> str:
    """`0.4123`, `NaN`."""
    return "" if run.loss is None else run.loss if isinstance(run.loss, str) else f"{run.loss:.4g}"


def shown_run_steps(run: PageRun) -> str:
    """`40/300`."""
    return "" if run.step is None else f"{run.step}/{run.total_steps}" if run.total_steps else str(run.step)


FACTS: Final[dict[str, Callable[[PageRun], str]]] = {
    "state": lambda run: run.state,
    "ranks": lambda run: "" if run.ranks is None else str(run.ranks),
    "steps": shown_run_steps,
    "loss": shown_run_loss,
    "took": lambda run: duration(run.took_s),
}
