"""`dtj local` without its command line: run one manifest on this machine."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from rich.console import Console

from ..spec.parse import parse_job
from ..status.model import JobStatus
from .cluster import LocalCluster
from .driver import Display, Driver
from .kept import Tail, keep_job
from .live import LiveDisplay
from .manifest import ManifestFile, load_job
from .plain import PlainDisplay
from .process import ProcessRunner
from .summary import Results, read_results
from .telling import counted


@dataclass(frozen=True)
class Show:
    """What is shown meanwhile. `plain`: lines, no panel. `output`: what the ranks write, too."""

    plain: bool = False
    output: bool = False


@dataclass(frozen=True)
class Finished:
    """How a local run ended."""

    status: JobStatus
    results: Results
    run_dir: Path


def run_local(manifest: Path, runs: Path, show: Show) -> Finished:
    """Run the job in `manifest` to its end under a new directory of `runs`. Leaves no process behind.

    Raises ManifestUnreadable or SpecInvalid before anything is started.
    """
    job = load_job(manifest)
    file = ManifestFile(manifest)
    name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
    run_dir = _new_directory(runs, name)
    spec = parse_job(job).spec
    world = f"{counted(spec.worker.replicas, 'worker')} x {counted(spec.slots, 'rank')}"
    print(f"{name}: {world} on this machine, logs in {run_dir / 'logs'}", flush=True)
    runner = ProcessRunner(run_dir, claims_dir=runs / "claims")
    try:
        with _display(show, Tail(run_dir / "logs" / namespace / name)) as display:
            status = Driver(LocalCluster(job, runner, keep=partial(keep_job, run_dir)), display, file).run()
    finally:
        runner.close()
    return Finished(status, read_results(run_dir / "logs", namespace, name, status.attempt), run_dir)


def _display(show: Show, tail: Tail) -> contextlib.AbstractContextManager[Display]:
    console = Console()
    shown = tail if show.output else None
    if show.plain or not console.is_terminal:
        return contextlib.nullcontext(PlainDisplay(sys.stdout, shown))
    return LiveDisplay(console, shown)


def _new_directory(runs: Path, name: str) -> Path:
    """`runs/NAME-TIME`, a number added when it is taken."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    for suffix in ("", *(f"-{number}" for number in range(2, 1000))):
        directory = runs / f"{name}-{stamp}{suffix}"
        try:
            directory.mkdir(parents=True)
        except FileExistsError:
            continue
        return directory
    raise FileExistsError(f"{runs}: cannot find a free name for {name}-{stamp}")
