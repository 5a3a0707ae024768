"""A job on this machine driven by a process of its own, so that a program can go on meanwhile.

`python -m ringtrain_client.local.detached RUN_DIR CLAIMS_DIR`. A run's directory has the job as an API
server would hold it (job.json), the manifest that is followed (manifest.json), and a lock that the driver holds.
"""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from .cluster import LocalCluster
from .driver import LocalDriver
from .manifest import LocalManifestFile
from .orphans import die_with_parent
from .past_runs import JOB_FILE, write_job
from .plain import PlainLocalDisplay
from .process import LocalProcessRunner

MANIFEST_FILE = "manifest.json"
LOCK_FILE = "driver.lock"
OUTPUT_FILE = "driver.log"


def start_driver(run_dir: Path, claims_dir: Path) -> subprocess.Popen[bytes]:
    """Drive the job whose job.json and manifest.json are in `run_dir`. The driver dies with the calling thread."""
    command = [sys.executable, "-m", "ringtrain_client.local.detached", str(run_dir), str(claims_dir)]
    with (run_dir / LOCK_FILE).open("w") as lock, (run_dir / OUTPUT_FILE).open("ab") as output:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the child has the same lock, and keeps it
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
    """The process that drives the run, None if none does any more."""
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
def driving_local_run(run_dir: Path) -> Iterator[None]:
    """Hold the run's lock while this process drives it itself, in the foreground."""
    with (run_dir / LOCK_FILE).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def write_manifest(run_dir: Path, job: dict[str, Any]) -> None:
    """Save the manifest; its driver takes the change up."""
    write_job(run_dir, job, MANIFEST_FILE)


def drive_local_run(run_dir: Path, claims_dir: Path) -> None:
    """Drive the run to its end. Leaves no process behind."""
    file = LocalManifestFile(run_dir / MANIFEST_FILE)
    file.seen = ()  # it may have been changed since the job was written
    job = json.loads((run_dir / JOB_FILE).read_text(encoding="utf-8"))
    runner = LocalProcessRunner(run_dir, claims_dir)
    try:
        cluster = LocalCluster(job, runner, keep=partial(write_job, run_dir))
        LocalDriver(cluster, PlainLocalDisplay(sys.stdout, None), file).run()
    finally:
        runner.close()


def _stop_local_driver(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop_local_driver)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a notebook is for the notebook
    with contextlib.suppress(KeyboardInterrupt):
        drive_local_run(Path(sys.argv[1]), Path(sys.argv[2]))
