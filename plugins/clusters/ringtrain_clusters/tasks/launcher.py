"""The driver's part of a run on Spark or Ray: start the launcher, run the tasks, return results in rank order."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TextIO

from ringtrain.errors import ConfigurationError, RankFailed, RingtrainError
from ringtrain.shared import contract
from ringtrain.shared.address import host_port
from ringtrain.shared.place import job_variables
from ringtrain.shared.ports import HeldPorts
from ringtrain.shared.processes import end_child, start_child
from ringtrain_clusters.tasks.plan import TaskRun, TaskWorldBounds
from ringtrain_job.cli.certificates import write_secrets
from ringtrain_job.launcher.outcome import read_outcome
from ringtrain_job.logs.layout import AttemptFiles

_START_TIMEOUT_S: Final = 600.0
_POLL_S: Final = 0.1
# Interval at which the number of running tasks is compared with the number of requested ranks.
_LOOK_S: Final = 1.0
_END_S: Final = 30.0
# Seconds for the delivery of the results after the last rank has ended.
_DELIVERY_S: Final = 3600.0
_runs = itertools.count(1)

Results = list[tuple[int, bytes | None]]


@dataclass(frozen=True)
class TaskScheduler:
    """System that schedules the tasks: Spark or Ray. `host`: address at which tasks reach the driver. `pickler`: module
    that pickles functions."""

    name: str
    host: str
    pickler: str


@dataclass(frozen=True)
class TaskRunOutput:
    """Streams for the ranks' output and the verbosity of Ringtrain's log. None as a stream: this process's stdout or
    stderr."""

    stdout: TextIO | None
    stderr: TextIO | None
    verbose: int
    log_dir: str | os.PathLike[str]

    @property
    def level(self) -> str:
        """Log level of launcher and agents."""
        return "info" if self.verbose >= 2 else "warning"


@dataclass(frozen=True)
class TaskRunOptions:
    """Options of one run. `start_timeout`: seconds; None stands for 600. `bounds`: limits of an elastic world, whose
    maximum is `size`; None if the world is fixed."""

    scheduler: TaskScheduler
    size: int
    start_timeout: float | None
    output: TaskRunOutput
    env: Mapping[str, str] | None = None
    executable: str | None = None
    bounds: TaskWorldBounds | None = None

    @property
    def start_timeout_s(self) -> float:
        """Seconds that all ranks have for their rendezvous."""
        return _START_TIMEOUT_S if self.start_timeout is None else float(self.start_timeout)


@dataclass(frozen=True)
class ScheduledTasks:
    """Functions with which a scheduler (Spark or Ray) runs the tasks of one run.

    `run`: starts the tasks and returns (rank, pickled result) of each, None for a failed rank. `cancel`: ends them.
    `partition_of`: returns the partition of the task whose death an error of `run` reports, or None. `said`: returns
    the error's text for users.
    """

    run: Callable[[TaskRun], Results]
    cancel: Callable[[], None]
    partition_of: Callable[[BaseException], int | None]
    said: Callable[[BaseException], str] = str


def pickled_by(pickler: str, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> bytes:
    """Return a function and its arguments for ranks as pickled bytes. Raises ConfigurationError if `pickler` fails."""
    try:
        return bytes(import_module(pickler).dumps((fn, tuple(args), dict(kwargs or {}))))
    except Exception as error:
        raise ConfigurationError(
            f"run: the function or its arguments can't be pickled ({type(error).__name__}: {error})"
        ) from error


def run_in_tasks(options: TaskRunOptions, work: bytes, tasks: ScheduledTasks) -> list[Any]:
    """Run the pickled function `work` (see `pickled_by`) in tasks; return the results in rank order. Raises RankFailed
    for the rank that failed first."""
    scheduler = options.scheduler
    name = f"{scheduler.name.lower()}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{next(_runs)}"
    with ExitStack() as stack:
        launcher = _TaskRunLauncher.start(stack, options, name)
        task_run = TaskRun(
            scheduler.name,
            name,
            options.size,
            host_port(scheduler.host, launcher.port),
            launcher.secrets,
            work,
            scheduler.pickler,
            dict(options.env or {}),
            options.executable,
            options.start_timeout_s,
            options.output.level,
            options.bounds.on_loss if options.bounds else "",
        )
        if options.bounds:
            launcher.await_listening(options.start_timeout_s)
        return _task_results(launcher, _RunningScheduledTasks.start(stack, tasks, task_run, launcher), options)


@dataclass(frozen=True)
class _TaskRunLauncher:
    """Launcher process of a run, a child of the driver. It waits for all agents and stores the logs of ranks."""

    process: subprocess.Popen[bytes]
    port: int
    status_port: int
    secrets: dict[str, bytes]
    files: AttemptFiles
    scheduler: str

    @staticmethod
    def start(stack: ExitStack, run: TaskRunOptions, name: str) -> _TaskRunLauncher:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ringtrain-")))
        write_secrets(folder, name)
        held = HeldPorts()
        stack.callback(held.release)
        port, status_port = held.take(0, 2)
        held.share()
        command = [sys.executable, "-m", "ringtrain", "launcher", "--log-level", run.output.level]
        variables = _launcher_variables(run, name, folder, port, status_port)
        process = start_child(command, variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        stack.callback(end_child, process, _END_S)
        own_streams = run.output.stdout or sys.stdout, run.output.stderr or sys.stderr
        for source, target in zip((process.stdout, process.stderr), own_streams, strict=True):
            copier = threading.Thread(target=_copy_task_logs, args=(source, target), daemon=True)
            copier.start()
            stack.callback(copier.join, _END_S)
        stack.callback(process.terminate)
        files = AttemptFiles.of(Path(variables[contract.ENV_LOG_DIR]), run.scheduler.name.lower(), name, 1)
        own = {file.name: file.read_bytes() for file in (folder / contract.ROLE_WORKER).iterdir()}
        return _TaskRunLauncher(process, port, status_port, own, files, run.scheduler.name)

    def rank_of(self, partition: int) -> int | None:
        """Return the rank of task `partition` from the launcher's status; None before its agent has registered."""
        return next((index for index, pod in self._pods().items() if pod == f"task-{partition}"), None)

    def await_listening(self, limit_s: float) -> None:
        """Wait until the launcher listens. A task that cannot connect assumes that the run has ended."""
        end = time.monotonic() + limit_s
        while self.process.poll() is None and time.monotonic() < end:
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), _END_S).close()
                return
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Send SIGINT to the launcher, which then stops the ranks, and wait for its end."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_END_S)

    def grow(self, asked: int) -> int:
        """Raise the launcher's number of workers from `asked` to cover all running tasks; return the new number."""
        running = [index for index, pod in self._pods().items() if pod == f"task-{index}"]
        wanted = max([asked, *(index + 1 for index in running)])
        if wanted == asked:
            return asked
        with suppress(OSError, ValueError):
            self._call("/workers", {"workers": wanted})
            return wanted
        return asked

    def _pods(self) -> dict[int, str]:
        with suppress(OSError, ValueError):
            return {int(worker["index"]): str(worker["pod"]) for worker in self._call("/status")["workers"]}
        return {}

    def _call(self, path: str, said: Any = None) -> Any:
        data, method = (None, "GET") if said is None else (json.dumps(said).encode(), "PUT")
        request = urllib.request.Request(f"http://127.0.0.1:{self.status_port}{path}", data, method=method)
        request.add_header("Authorization", f"Bearer {self.secrets['token'].decode()}")
        with urllib.request.urlopen(request, timeout=_END_S) as answer:
            return json.loads(answer.read() or b"{}")


def _launcher_variables(run: TaskRunOptions, name: str, folder: Path, port: int, status_port: int) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RINGTRAIN_")}
    kept = {name: os.environ[name] for name in (contract.ENV_TIMEOUT,) if name in os.environ}
    return {
        **inherited,
        **kept,
        **job_variables(name, run.scheduler.name.lower(), name, run.size, 1),
        contract.ENV_ROLE: contract.ROLE_LAUNCHER,
        contract.ENV_SECRET_DIR: str(folder / contract.ROLE_LAUNCHER),
        contract.ENV_LAUNCHER_PORT: str(port),
        contract.ENV_STATUS_PORT: str(status_port),
        contract.ENV_PORTS_HELD: "1",
        contract.ENV_LOG_DIR: str(Path(run.output.log_dir).resolve()),
        contract.ENV_START_TIMEOUT: f"{run.start_timeout_s:g}",
        **(run.bounds.variables() if run.bounds else {}),
    }


def _copy_task_logs(source: Any, target: TextIO) -> None:
    for line in source:
        with suppress(ValueError, OSError):  # the owner of the stream has closed it
            target.write(line.decode(errors="replace"))
            target.flush()


@dataclass
class _RunningScheduledTasks:
    """Running tasks, and the driver's thread that waits for their results."""

    tasks: ScheduledTasks
    thread: threading.Thread | None = None
    results: Results = field(default_factory=list)
    error: BaseException | None = None

    @staticmethod
    def start(
        stack: ExitStack, tasks: ScheduledTasks, task_run: TaskRun, launcher: _TaskRunLauncher
    ) -> _RunningScheduledTasks:
        running = _RunningScheduledTasks(tasks)
        running.thread = threading.Thread(target=running._work, args=(task_run,), daemon=True)

        def cancel() -> None:
            if running.is_running():
                try:
                    launcher.stop()  # ranks may save: a cancelled task is killed
                finally:
                    tasks.cancel()
                    running.join(_END_S)

        stack.callback(cancel)
        running.thread.start()
        return running

    def _work(self, task_run: TaskRun) -> None:
        try:
            self.results = self.tasks.run(task_run)
        except BaseException as error:
            self.error = error

    def is_running(self) -> bool:
        return self.thread is not None and self.thread.is_alive()

    def join(self, timeout_s: float | None) -> None:
        if self.thread is not None:
            self.thread.join(timeout_s)


def _task_results(launcher: _TaskRunLauncher, running: _RunningScheduledTasks, options: TaskRunOptions) -> list[Any]:
    """Wait until the launcher has ended; return the results in rank order. Raises if a rank or a task failed."""
    asked, look_at = options.bounds.begin if options.bounds else options.size, 0.0
    while launcher.process.poll() is None:
        if options.size > asked and time.monotonic() >= look_at:
            asked, look_at = launcher.grow(asked), time.monotonic() + _LOOK_S
        if not running.is_running() and running.error is not None:
            raise _error_of_dead_task(launcher, running.tasks, running.error) from running.error
        time.sleep(_POLL_S)
    # The results of ranks may be large, and are only sent now.
    running.join(_END_S if launcher.process.returncode else _DELIVERY_S)
    outcome = read_outcome(launcher.files)
    if launcher.process.returncode:
        raise _error_of_task_verdict(launcher, outcome, running.error)
    if running.is_running() or running.error is not None:
        why = f"within {_DELIVERY_S:g} s" if running.error is None else f"({running.tasks.said(running.error)})"
        raise RingtrainError(
            f"run: all ranks have succeeded, but {launcher.scheduler} did not deliver their results {why}; "
            f"logs: {launcher.files.directory}"
        ) from running.error
    found = dict(running.results)
    size = len(found) if options.bounds else options.size
    missing = [rank for rank in range(size) if found.get(rank) is None]
    if missing:
        raise RankFailed(missing[0], f"run: rank {missing[0]} ended without a result; logs: {launcher.files.directory}")
    return [pickle.loads(found[rank] or b"") for rank in range(size)]


def _error_of_dead_task(launcher: _TaskRunLauncher, tasks: ScheduledTasks, error: BaseException) -> RingtrainError:
    text, partition = tasks.said(error), tasks.partition_of(error)
    rank = None if partition is None else launcher.rank_of(partition)
    launcher.process.send_signal(signal.SIGTERM)
    if rank is None:
        return RingtrainError(f"run: {launcher.scheduler} tasks failed: {text}")
    who = f"the {launcher.scheduler} task of rank {rank} (partition {partition})"
    return RankFailed(rank, f"run: {who} died; logs: {launcher.files.directory}\n\n{text}")


def _error_of_task_verdict(launcher: _TaskRunLauncher, outcome: Any, error: BaseException | None) -> RingtrainError:
    failure = (outcome or {}).get("failure") or {}
    rank = failure.get("rank")
    said = "\n".join(failure.get("logTail") or ())
    why = failure.get("message") or f"its launcher ended with exit code {launcher.process.returncode}"
    text = f"run: {why}; logs: {launcher.files.directory}\n\n{said}"
    if rank is None and error is not None:
        text += f"\n\n{launcher.scheduler}: {error}"
    return RankFailed(rank, text)
