"""Backend for jobs on this machine. One driver process per job runs the operator's `plan` and the job's processes."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import time
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from ringtrain_operator.cluster.api.errors import AlreadyExists, NotFound
from ringtrain_operator.errors import Invalid, OperatorError, counted
from ringtrain_operator.observe.model import LauncherReport
from ringtrain_operator.spec.parse import parse_job, update_problems
from ringtrain_operator.status.model import format_time

from ..local.detached import MANIFEST_FILE, driver_of, start_driver, write_manifest
from ..local.manifest import as_stored
from ..local.past_runs import JOB_FILE, NoSuchRun, PastLocalRun, newest_run, past_runs, read_job, write_job
from ..local.places import check_loopback
from ..local.run import new_directory
from ..local.summary import ended_status
from ..local.templates import LocalTemplates
from .causes import explain_job
from .cluster_logs import NoSuchRank
from .errors import DriverLost
from .following import ENDED, state_of
from .launcher_output import WantedLauncherOutput
from .manifest import escape_references, merged_spec_maps
from .script import Script
from .session import Json

POLL_S = 0.1
# A driver gives its pods 5 s to end.
_ENDS_WITHIN_S = 30.0
_CHUNK = 1 << 20


class LocalBackend:
    """Backend that runs jobs on this machine. Each pod is a process group with an agent, as if it had its own node.

    `runs`: the directory of the runs, as for `dtj local`. `templates`: files with templates that jobs can name. Images
    are ignored: in a job's command, `python` means the interpreter of this program. Jobs that this backend has started
    end when it is closed and when the program ends.
    """

    def __init__(self, runs: str | Path = "runs", *, templates: Sequence[str | Path] = ()) -> None:
        self._runs = Path(runs).absolute()
        self._templates = LocalTemplates.of_files(map(Path, templates))
        self._drivers: dict[Path, subprocess.Popen[bytes]] = {}

    async def place_of(self) -> str:
        """Return the namespace of jobs whose manifest names none."""
        return "default"

    def inside(self, namespace: str) -> LocalBackend:
        """Return this backend, because jobs on this machine are not separated by namespace."""
        return self

    def command_of(self, script: Script) -> list[str]:
        """Return the command that runs `script`: a file at its own path, a function's source in the run's directory."""
        return ["python", str(script.path)] if script.path is not None else ["python", script.name]

    async def check(self, job: Json) -> None:
        """Raise Invalid with every problem of the job's manifest."""
        parse_job(self._templates.merged_with_template(job))

    async def create(self, job: Json, script: Script | None = None) -> Json:
        """Start a process that drives the job; return the job as stored."""
        name = job["metadata"].get("name") or ""
        await self.check(job)
        job = self._templates.merged_with_template(job)
        with suppress(NotFound):
            if driver_of(self._run(name).directory) is not None:
                raise AlreadyExists(f"{name} runs on this machine already; delete that job or choose another name")
        check_loopback()
        directory = new_directory(self._runs, name)
        try:
            if script is not None and script.path is None:
                job = _with_script(job, script, directory)
            stored = as_stored(job)
            write_job(directory, stored)
            write_manifest(directory, job)
            self._drivers[directory] = start_driver(directory, self._runs / "claims")
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        return stored

    async def get(self, name: str) -> Json:
        """Return the newest job of this name."""
        return _with_driver_state(self._run(name))

    async def select(self, *, everywhere: bool = False) -> list[Json]:
        """Return all jobs, the newest first. `everywhere` has no effect."""
        return [_with_driver_state(run) for run in past_runs(self._runs)]

    async def patch(self, name: str, spec: Mapping[str, Any]) -> Json:
        """Apply `spec` as a merge patch to the job's manifest, which the process that drives the job reads again;
        return the changed job."""
        run = self._run(name)
        path = run.directory / MANIFEST_FILE
        if driver_of(run.directory) is None:
            raise DriverLost(f"{name} has no driver process any more; its logs are in {run.directory}")
        try:
            job = json.loads(path.read_text(encoding="utf-8"))
        except OSError as exc:
            raise OperatorError(
                f"{name} was started by dtj local; change the manifest file with which you started the job"
            ) from exc
        changed = {**job, "spec": merged_spec_maps(job["spec"], spec)}
        problems = update_problems(parse_job(changed).spec, parse_job(job).spec, run.job.get("status"))
        if problems:
            raise Invalid(problems)
        write_manifest(run.directory, changed)
        return {**run.job, "spec": changed["spec"]}

    async def delete(self, name: str) -> None:
        """End the job's processes and remove the job from the list. Its logs stay in its directory."""
        run = self._run(name)
        await self._end_driver(run.directory)
        (run.directory / JOB_FILE).unlink(missing_ok=True)

    async def changes(self, name: str) -> AsyncGenerator[Json, None]:
        """Yield the job now, and the changed job after each change. Raises DriverLost if the process that drives the
        job ends before the job."""
        shown, run = None, self._run(name)
        while True:
            driver = driver_of(run.directory)  # before job.json, so that the driver's last write is not missed
            job = read_job(run.directory)
            if job is None:
                return
            if driver is None and state_of(job) not in ENDED:
                raise DriverLost(f"{name} has no driver process any more: it was ended or killed; see {run.directory}")
            if job != shown:
                shown = job
                yield job
            await asyncio.sleep(POLL_S)

    async def logs(self, wanted: WantedLauncherOutput) -> AsyncGenerator[bytes, None]:
        """Yield the requested log from the files of the run."""
        run = self._run(wanted.name)
        if wanted.follow:
            _check_rank(run.job, wanted)  # without follow, the error lists the existing logs
        attempt, offset, tail = wanted.attempt or _attempt(run.job), 0, wanted.tail
        while True:
            is_running, present = self._driver_state(run.directory)
            log = _open_log(run, wanted, attempt, required=not wanted.follow)
            if log is not None:
                with log:
                    for chunk in _log_chunks(log, offset, tail):
                        yield chunk
                    offset, tail = log.tell(), None
            if present > attempt and wanted.follow and wanted.attempt is None:
                attempt, offset = attempt + 1, 0
            elif not wanted.follow or not is_running or present > attempt:
                return
            else:
                await asyncio.sleep(POLL_S)

    async def causes(self, name: str) -> list[str]:
        """Return the causes of the job's state from its status, one per line."""
        return list(explain_job(await self.get(name), [], []))

    async def launcher_report(self, name: str) -> LauncherReport | None:
        """Return None, because only the process that drives the job knows its launcher's address."""
        return None

    async def close(self) -> None:
        """End all running jobs that were started by this backend."""
        directories = [path for path, process in self._drivers.items() if process.poll() is None]
        await asyncio.gather(*map(self._end_driver, directories))
        for process in self._drivers.values():
            process.wait(_ENDS_WITHIN_S)
        self._drivers.clear()

    def _run(self, name: str) -> PastLocalRun:
        try:
            return newest_run(self._runs, name)
        except NoSuchRun as exc:
            raise NotFound(str(exc)) from exc

    def _driver_state(self, directory: Path) -> tuple[bool, int]:
        """Return a pair: whether the run's log may still grow, and the number of the job's current attempt."""
        driver = driver_of(directory)
        job = read_job(directory)
        if job is None:
            return False, 0
        return driver is not None and state_of(job) not in ENDED, _attempt(job)

    async def _end_driver(self, directory: Path) -> None:
        """End the run's driver process, which ends the job's pods."""
        pid = driver_of(directory)
        if pid is None:
            return
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        give_up_at = time.monotonic() + _ENDS_WITHIN_S
        while driver_of(directory) is not None:
            if time.monotonic() > give_up_at:
                raise OperatorError(
                    f"the driver process {pid} of {directory.name} did not end within {_ENDS_WITHIN_S:g} s; kill it"
                )
            await asyncio.sleep(POLL_S)
        if directory in self._drivers:
            self._drivers[directory].wait(_ENDS_WITHIN_S)


def _with_driver_state(run: PastLocalRun) -> Json:
    """Return the run's job. Its state is Failed if its driver process has ended before the job did.

    Its progress is then left out: the stored one is older than the logs, from which `ringtrain list` computes it.
    """
    if state_of(run.job) in ENDED or driver_of(run.directory) is not None:
        return run.job
    found = read_job(run.directory)  # it may have ended between the two looks
    if found is None:
        return run.job
    job: Json = {**found, "metadata": run.job["metadata"]}
    if state_of(job) in ENDED:
        return job
    with suppress(FileNotFoundError):
        at = format_time(datetime.fromtimestamp((run.directory / JOB_FILE).stat().st_mtime, UTC))
        stored = {k: v for k, v in (job.get("status") or {}).items() if k not in ("progress", "progressSummary")}
        message = "its driver was killed; ringtrain list shows its last step"
        return {**job, "status": ended_status(stored, "DriverLost", message, at)}
    return run.job


def _with_script(job: Json, script: Script, directory: Path) -> Json:
    """Write the script to the run's directory; return the job with the script's path in its command."""
    file = directory / "script" / script.name
    file.parent.mkdir()
    file.write_text(script.text, encoding="utf-8")
    command = ["python", escape_references(str(file.resolve()))]
    container = job["spec"]["worker"]["template"]["spec"]["containers"][0]
    rest = container["command"][len(command) :]
    made: Json = json.loads(json.dumps(job))
    made["spec"]["worker"]["template"]["spec"]["containers"][0]["command"] = [*command, *rest]
    return made


def _attempt(job: Json) -> int:
    return int((job.get("status") or {}).get("attempt") or 1)


def _check_rank(job: Json, wanted: WantedLauncherOutput) -> None:
    """Raise NoSuchRank if the job cannot have the requested rank, even at its maximum size. Do nothing if an attempt is
    requested."""
    parsed = parse_job(job, templates=False)
    size = parsed.max_agents * parsed.spec.slots
    if wanted.rank is not None and wanted.rank >= size and wanted.attempt is None:
        raise NoSuchRank(f"--rank {wanted.rank}: {wanted.name} has {counted(size, 'rank')}, 0 to {size - 1}")


def _open_log(run: PastLocalRun, wanted: WantedLauncherOutput, attempt: int, *, required: bool) -> BinaryIO | None:
    """Open the requested log file. If it does not exist: return None, or raise NotFound if it is `required`."""
    try:
        return run.log(wanted.rank, attempt).open("rb")
    except (NoSuchRun, OSError) as exc:
        if required:
            raise NotFound(str(exc)) from exc
        return None


def _log_chunks(log: BinaryIO, offset: int, tail: int | None) -> Iterator[bytes]:
    """Yield the log's content from `offset` on, or the last `tail` lines of this part."""
    log.seek(offset)
    if tail is not None:
        yield from deque(log, tail)
    while chunk := log.read(_CHUNK):
        yield chunk
