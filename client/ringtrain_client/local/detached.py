"""Separate process that drives a local job, so that the program that started it can continue.

Usage: `python -m ringtrain_client.local.detached RUN_DIR CLAIMS_DIR`. A run's directory has the job as an API server
would store it (job.json), the manifest that the driver follows (manifest.json), and a lock of the driver.
"""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from ringtrain_operator.errors import OperatorError
from ringtrain_operator.status.model import format_time, parse_status

from .cluster import LocalCluster
from .driver import LocalDriver
from .manifest import LocalManifestFile
from .orphans import die_with_parent
from .past_runs import JOB_FILE, write_job
from .plain import PlainLocalDisplay
from .process import LocalProcessRunner
from .summary import ended_status

MANIFEST_FILE = "manifest.json"
LOCK_FILE = "driver.lock"
OUTPUT_FILE = "driver.log"


def start_driver(run_dir: Path, claims_dir: Path) -> subprocess.Popen[bytes]:
    """Start and return a process that drives the job in `run_dir`. The process is killed when the calling thread
    ends."""
    command = [sys.executable, "-m", "ringtrain_client.local.detached", str(run_dir), str(claims_dir)]
    with (run_dir / LOCK_FILE).open("w") as lock, (run_dir / OUTPUT_FILE).open("ab") as output:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the child inherits the lock
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,
            pass_fds=[lock.fileno()],
        )
        lock.write(str(process.pid))
        return process


def driver_of(run_dir: Path) -> int | None:
    """Return the pid of the process that drives the run; None if no process does."""
    try:
        with (run_dir / LOCK_FILE).open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(lock.read())
    except (OSError, ValueError):
        return None
    return None


@contextlib.contextmanager
def locked_run(run_dir: Path) -> Iterator[None]:
    """Lock the run while this process drives it in the foreground."""
    with (run_dir / LOCK_FILE).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


@contextlib.contextmanager
def failure_stored(cluster: LocalCluster) -> Iterator[None]:
    """Store the job as Failed, with the error's message, if an exception of the block ends the driver before the job
    has ended."""
    try:
        yield
    except Exception as exc:
        if not parse_status(cluster.status).finished:
            is_refusal = isinstance(exc, OperatorError)
            reason, text = ("CannotRun", str(exc)) if is_refusal else ("DriverFailed", f"{type(exc).__name__}: {exc}")
            cluster.job["status"] = ended_status(cluster.status, reason, text, format_time(datetime.now(UTC)))
            with contextlib.suppress(OSError):  # of a full disk, for example; `exc` is the first cause
                cluster.store(cluster.job)
        raise


def write_manifest(run_dir: Path, job: dict[str, Any]) -> None:
    """Write the job's manifest to the run's directory. The driver reads it again after each change."""
    write_job(run_dir, job, MANIFEST_FILE)


def drive_run(run_dir: Path, claims_dir: Path) -> None:
    """Run the job in `run_dir` until it ends. No process is left behind."""
    file = LocalManifestFile(run_dir / MANIFEST_FILE)
    file.seen = ()  # it may have been changed since the job was written
    job = json.loads((run_dir / JOB_FILE).read_text(encoding="utf-8"))
    runner = LocalProcessRunner(run_dir, claims_dir)
    try:
        cluster = LocalCluster(job, runner, store=partial(write_job, run_dir))
        with failure_stored(cluster):
            LocalDriver(cluster, PlainLocalDisplay(sys.stdout, None), file).run()
    finally:
        runner.close()


def _raise_interrupt(number: int, frame: FrameType | None) -> None:
    """Handle a signal like Ctrl-C."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _raise_interrupt)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a notebook must not end the job
    with contextlib.suppress(KeyboardInterrupt):
        drive_run(Path(sys.argv[1]), Path(sys.argv[2]))
