"""The function behind `dtj local`, which runs one manifest on this machine."""

import secrets
import time
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path

from rich.console import Console

from ringtrain_operator.errors import counted
from ringtrain_operator.observe.pods import page_token
from ringtrain_operator.spec.parse import parse_job
from ringtrain_operator.status.model import JobStatus, parse_status

from .cluster import LocalCluster
from .contents import read_contents
from .detached import failure_stored, locked_run
from .documents import read_documents
from .driver import LocalDriver
from .manifest import LocalManifestFile, load_job
from .panel import job_display
from .past_runs import PastLocalRunTail, write_job
from .places import check_loopback
from .process import CLOSING_GRACE_S, LocalProcessRunner
from .summary import LocalRunResults, read_local_results, stopped_status
from .templates import LocalTemplates
from .wording import wrapped_text


def run_local(
    manifest: Path,
    runs: Path,
    plain: bool,
    output: bool,
    ui: bool = False,
    templates: LocalTemplates | None = None,
) -> tuple[JobStatus, LocalRunResults]:
    """Run the job in `manifest` to its end, in a new directory under `runs`; return its final status, and its results.
    No process is left behind.

    `plain`: print lines instead of a panel. `output`: also print the output of ranks. `ui`: print the link to the job's
    page first. `templates`: templates in addition to those of the file. After Ctrl-C, `stopped` of the results is True.
    Raises ManifestUnreadable or Invalid before anything is started, and LocalUnsupported if this machine cannot run the
    job's pods. An error that ends the run is also stored in the job's status.
    """
    templates = templates or LocalTemplates()
    job = load_job(manifest, templates)
    file = LocalManifestFile(manifest, templates)
    contents = read_contents(read_documents(manifest), job["metadata"]["namespace"])
    check_loopback()
    name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
    run_dir = new_directory(runs, name)
    spec = parse_job(job).spec
    world = f"{counted(spec.worker.replicas, 'worker')} x {counted(spec.slots, 'rank')}"
    print(wrapped_text(f"{name}: {world} on this machine, logs in {run_dir / 'logs'}", Console()), flush=True)
    tail = PastLocalRunTail(run_dir / "logs" / namespace / name) if output else None
    runner = LocalProcessRunner(run_dir, claims_dir=runs / "claims")
    page_secret = secrets.token_hex(32) if ui else ""
    if ui:
        address = runner.status_url.removesuffix("status")
        print(f"page: {address}?token={page_token(page_secret)}", flush=True)
    cluster = LocalCluster(job, runner, store=partial(write_job, run_dir), page_secret=page_secret, contents=contents)
    stopped = False
    try:
        with locked_run(run_dir), failure_stored(cluster), job_display(plain, tail) as display:
            status = LocalDriver(cluster, display, file).run()
    except KeyboardInterrupt:
        ranks = counted(spec.worker.replicas * spec.slots, "rank")
        stopping = f"stopping {ranks} ({CLOSING_GRACE_S:g} s; press Ctrl-C again to kill them)"
        print(wrapped_text(stopping, Console()), flush=True)
        with suppress(KeyboardInterrupt):
            runner.end_launchers(time.monotonic() + CLOSING_GRACE_S)
        cluster.job["status"] = stopped_status(cluster.status, cluster.launcher_message())
        write_job(run_dir, cluster.job)
        status, stopped = parse_status(cluster.status), True
    finally:
        runner.close()
    return status, read_local_results(run_dir / "logs" / namespace / name, status.attempt, stopped)


def new_directory(runs: Path, name: str) -> Path:
    """Create and return the directory `runs/NAME-TIME`. If it exists, a number is added to the name."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    for suffix in ("", *(f"-{number}" for number in range(2, 1000))):
        directory = runs / f"{name}-{stamp}{suffix}"
        try:
            directory.mkdir(parents=True)
        except FileExistsError:
            continue
        return directory
    raise FileExistsError(f"{runs}: cannot find a free name for {name}-{stamp}")
