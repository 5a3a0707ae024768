"""`run`: a function as ranks in the tasks of a Spark barrier stage, watched by a launcher beside the driver."""

from __future__ import annotations

import itertools
import json
import logging
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO

from ringtrain.errors import ConfigurationError, RankFailed, RingtrainError
from ringtrain.shared import contract
from ringtrain.shared.address import host_port
from ringtrain.shared.ports import HeldPorts
from ringtrain.shared.processes import start_child
from ringtrain.spark.plan import SparkRun
from ringtrain.spark.task import rank_of
from ringtrain_job.cli.certificates import write_secrets
from ringtrain_job.logs.layout import AttemptFiles
from ringtrain_job.logs.reading import read_outcome

log = logging.getLogger("ringtrain.spark")
NAMESPACE: Final = "spark"
_START_TIMEOUT_S: Final = 600.0
# Executors of a cluster that has just been asked for come one after the other.
_SLOTS_S: Final = 30.0
_POLL_S: Final = 0.1
_END_S: Final = 30.0
# What ranks have returned, after the last one has ended.
_DELIVERY_S: Final = 3600.0
_NO_EFFECT: Final = {
    "use_mpi": "ranks exchange over Ringtrain's own connections",
    "use_gloo": "ranks exchange over Ringtrain's own connections",
    "extra_mpi_args": "there is no mpirun",
    "nics": "a rank's address is its task's on the way to the driver",
    "prefix_output_with_timestamp": "lines begin with their rank",
}
_FAILED_TASK: Final = re.compile(r"barrier task ResultTask\(\d+, (\d+)\)|Task (\d+) in stage")
_runs = itertools.count(1)


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    start_timeout: float | None = None,
    use_mpi: bool | None = None,
    use_gloo: bool | None = None,
    extra_mpi_args: str | None = None,
    env: Mapping[str, str] | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    verbose: int = 1,
    nics: Any = None,
    prefix_output_with_timestamp: bool = False,
    executable: str | None = None,
    *,
    log_dir: str | os.PathLike[str] = "runs",
) -> list[Any]:
    """Return what `fn(*args, **kwargs)` returned on each of `num_proc` ranks, by rank.

    Every rank is a process beside one task of a Spark barrier stage, so all of them run at once or none does.

    `num_proc`: by default Spark's default parallelism. `start_timeout`: seconds that ranks get to come together,
    600 by default. `env`: variables that ranks get on top of their task's. `stdout`: gets ranks' lines, `stderr`
    what Ringtrain says; by default those of this process. `verbose`: 2 says what launcher and agents do.
    `executable`: the Python of ranks. `log_dir`: where every rank's output is kept. The other arguments are
    Horovod's and have no effect.

    Raises RankFailed for the rank that failed first, also for one whose task died; all others have ended then.
    Raises ConfigurationError when there is no Spark session, or the cluster has fewer slots than `num_proc`.
    """
    context = _context()
    _say_no_effect(locals())
    size = context.defaultParallelism if num_proc is None else num_proc
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ConfigurationError(f"run: num_proc is {size!r}; expected a number of ranks of at least 1")
    limit_s = _START_TIMEOUT_S if start_timeout is None else float(start_timeout)
    check_slots(context, size, min(_SLOTS_S, limit_s))
    name = f"spark-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{next(_runs)}"
    level = "info" if verbose >= 2 else "warning"
    with ExitStack() as stack:
        place = _RunSettings(name, size, Path(log_dir).resolve(), limit_s, level)
        launcher = _RunLauncher.start(stack, place, _Streams(stdout or sys.stdout, stderr or sys.stderr))
        address = host_port(context.getConf().get("spark.driver.host", "127.0.0.1"), launcher.port)
        work = _pickled((fn, tuple(args), dict(kwargs or {})))
        spark_run = SparkRun(
            name, size, address, launcher.secrets, work, dict(env or {}), executable, limit_s, level
        )
        stage = _Stage.start(stack, context, spark_run)
        return _results(launcher, stage, size)


def check_slots(context: Any, size: int, patience_s: float = _SLOTS_S) -> None:
    """Raise ConfigurationError unless the cluster can run `size` tasks at once; Spark would wait for more.

    `patience_s`: how long executors of a cluster may still come.
    """
    scala = context._jsc.sc()
    profile = scala.resourceProfileManager().defaultResourceProfile()
    is_one_process = context.master.startswith("local") and "cluster" not in context.master
    end = time.monotonic() + (0.0 if is_one_process else patience_s)
    while (slots := int(scala.maxNumConcurrentTasks(profile))) < size:
        if time.monotonic() >= end:
            raise ConfigurationError(
                f"run: num_proc is {size}, and {context.master} has {slots} slots: all ranks run at once, each in "
                f"a task of its own. Ask for {slots} ranks, or for more executors or cores (spark.task.cpus is "
                f"{context.getConf().get('spark.task.cpus', '1')})"
            )
        time.sleep(_POLL_S)


def _context() -> Any:
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        return SparkSession.active().sparkContext
    except PySparkRuntimeError as error:
        raise ConfigurationError(
            "run: there is no Spark session; make one first: SparkSession.builder.getOrCreate()"
        ) from error


def _say_no_effect(arguments: Mapping[str, Any]) -> None:
    for name, reason in _NO_EFFECT.items():
        if arguments[name]:
            log.warning("%s has no effect: %s", name, reason)


def _pickled(work: Any) -> bytes:
    from pyspark import cloudpickle

    try:
        return bytes(cloudpickle.dumps(work))
    except Exception as error:
        raise ConfigurationError(
            f"run: the function or its arguments can't be pickled ({type(error).__name__}: {error})"
        ) from error


@dataclass(frozen=True)
class _Streams:
    out: TextIO
    err: TextIO


@dataclass(frozen=True)
class _RunSettings:
    name: str
    size: int
    log_dir: Path
    start_timeout_s: float
    level: str


@dataclass(frozen=True)
class _RunLauncher:
    """The launcher of a run, a child of the driver: it brings the ranks together and keeps their logs."""

    process: subprocess.Popen[bytes]
    port: int
    status_port: int
    secrets: dict[str, bytes]
    files: AttemptFiles

    @staticmethod
    def start(stack: ExitStack, place: _RunSettings, streams: _Streams) -> _RunLauncher:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ringtrain-")))
        write_secrets(folder, place.name)
        held = HeldPorts()
        stack.callback(held.release)
        port, status_port = held.take(0, 2)
        held.share()
        command = [sys.executable, "-m", "ringtrain", "launcher", "--log-level", place.level]
        variables = _launcher_variables(place, folder, port, status_port)
        process = start_child(command, variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        stack.callback(_end, process)
        for source, target in ((process.stdout, streams.out), (process.stderr, streams.err)):
            copier = threading.Thread(target=_copy, args=(source, target), daemon=True)
            copier.start()
            stack.callback(copier.join, _END_S)
        stack.callback(process.terminate)
        files = AttemptFiles.of(place.log_dir, NAMESPACE, place.name, 1)
        own = {file.name: file.read_bytes() for file in (folder / contract.ROLE_WORKER).iterdir()}
        return _RunLauncher(process, port, status_port, own, files)

    def rank_of(self, partition: int) -> int | None:
        """The rank of a task's agent, as the launcher knows it; None before it has registered."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.status_port}/status")
        request.add_header("Authorization", f"Bearer {self.secrets['token'].decode()}")
        with suppress(OSError, ValueError), urllib.request.urlopen(request, timeout=_END_S) as answer:
            for worker in json.load(answer)["workers"]:
                if worker["pod"] == f"task-{partition}":
                    return int(worker["index"])
        return None


def _launcher_variables(place: _RunSettings, folder: Path, port: int, status_port: int) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RINGTRAIN_")}
    kept = {name: os.environ[name] for name in (contract.ENV_TIMEOUT,) if name in os.environ}
    return {
        **inherited,
        **kept,
        contract.ENV_ROLE: contract.ROLE_LAUNCHER,
        contract.ENV_JOB_NAME: place.name,
        contract.ENV_JOB_NAMESPACE: NAMESPACE,
        contract.ENV_JOB_UID: place.name,
        contract.ENV_ATTEMPT: "1",
        contract.ENV_BACKEND: "ring",
        contract.ENV_NUM_WORKERS: str(place.size),
        contract.ENV_SLOTS_PER_WORKER: "1",
        contract.ENV_SECRET_DIR: str(folder / contract.ROLE_LAUNCHER),
        contract.ENV_LAUNCHER_PORT: str(port),
        contract.ENV_STATUS_PORT: str(status_port),
        contract.ENV_PORTS_HELD: "1",
        contract.ENV_LOG_DIR: str(place.log_dir),
        contract.ENV_START_TIMEOUT: f"{place.start_timeout_s:g}",
        contract.ENV_TERMINATION_MESSAGE_PATH: os.devnull,
    }


def _copy(source: Any, target: TextIO) -> None:
    for line in source:
        with suppress(ValueError, OSError):  # whoever gave the stream has closed it
            target.write(line.decode(errors="replace"))
            target.flush()


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@dataclass
class _Stage:
    """The barrier stage, which runs in a thread of the driver."""

    thread: threading.Thread | None = None
    results: list[tuple[int, bytes | None]] = field(default_factory=list)
    error: BaseException | None = None

    @staticmethod
    def start(stack: ExitStack, context: Any, spark_run: SparkRun) -> _Stage:
        stage, group = _Stage(), f"ringtrain-{uuid.uuid4()}"
        stage.thread = threading.Thread(target=stage._work, args=(context, group, spark_run), daemon=True)

        def cancel() -> None:
            if stage.is_running():
                context.cancelJobGroup(group)
                stage.join(_END_S)

        stack.callback(cancel)
        stage.thread.start()
        return stage

    def _work(self, context: Any, group: str, spark_run: SparkRun) -> None:
        try:
            context.setJobGroup(group, f"{spark_run.size} ranks of Ringtrain", interruptOnCancel=True)
            tasks = context.parallelize(range(spark_run.size), spark_run.size).barrier()
            self.results = tasks.mapPartitions(rank_of(spark_run)).collect()
        except BaseException as error:
            self.error = error

    def is_running(self) -> bool:
        return self.thread is not None and self.thread.is_alive()

    def join(self, timeout_s: float | None) -> None:
        if self.thread is not None:
            self.thread.join(timeout_s)


def _results(launcher: _RunLauncher, stage: _Stage, size: int) -> list[Any]:
    """Wait for the launcher's verdict, or for Spark to say that the stage failed."""
    while launcher.process.poll() is None:
        if not stage.is_running() and stage.error is not None:
            raise _of_a_dead_task(launcher, stage.error) from stage.error
        time.sleep(_POLL_S)
    # What ranks have returned may be large, and is on its way only now.
    stage.join(_END_S if launcher.process.returncode else _DELIVERY_S)
    outcome = read_outcome(launcher.files)
    if launcher.process.returncode:
        raise _of_a_verdict(launcher, outcome, stage.error)
    if stage.is_running() or stage.error is not None:
        why = f"within {_DELIVERY_S:g} s" if stage.error is None else f"({_said(stage.error)})"
        raise RingtrainError(
            f"run: all ranks have succeeded, and Spark did not deliver what they returned {why}; "
            f"logs: {launcher.files.directory}"
        ) from stage.error
    found = dict(stage.results)
    missing = [rank for rank in range(size) if found.get(rank) is None]
    if missing:
        raise RankFailed(
            missing[0], f"run: rank {missing[0]} has ended and left no result; logs: {launcher.files.directory}"
        )
    return [pickle.loads(found[rank] or b"") for rank in range(size)]


def _of_a_dead_task(launcher: _RunLauncher, error: BaseException) -> RingtrainError:
    text = _said(error)
    found = _FAILED_TASK.search(text)
    rank = launcher.rank_of(int(found[1] or found[2])) if found else None
    launcher.process.send_signal(signal.SIGTERM)
    if found is None or rank is None:
        return RingtrainError(f"run: the Spark stage of the ranks failed: {text}")
    who = f"the Spark task of rank {rank} (partition {found[1] or found[2]})"
    return RankFailed(rank, f"run: {who} died; logs: {launcher.files.directory}\n\n{text}")


def _said(error: BaseException) -> str:
    """What an error of Spark's says, without the frames of Java."""
    return str(error).partition("\n\tat ")[0]


def _of_a_verdict(launcher: _RunLauncher, outcome: Any, error: BaseException | None) -> RingtrainError:
    failure = (outcome or {}).get("failure") or {}
    rank = failure.get("rank")
    said = "\n".join(failure.get("logTail") or ())
    why = failure.get("message") or f"its launcher ended with exit code {launcher.process.returncode}"
    text = f"run: {why}; logs: {launcher.files.directory}\n\n{said}"
    if rank is None and error is not None:
        text += f"\n\nSpark: {error}"
    return RankFailed(rank, text)
