"""Launcher and agents as the operator starts them: real processes, told everything by their environment."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil

from support.deadlines import patient
from support.ports import free_ports

T = TypeVar("T")

# Generous: a deadline is for a machine that is busy with something else, and only a test that fails waits for it.
DEADLINE_S = patient(180.0)


def until(what: str, look: Callable[[], T], deadline_s: float = DEADLINE_S) -> T:
    """The first true value of `look`; AssertionError naming `what` when there is none in time."""
    end = time.monotonic() + deadline_s
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < end, f"not within {deadline_s:g} s: {what}"
        time.sleep(0.02)


def runs(process: psutil.Process) -> bool:
    """Whether `process` has not ended: a zombie only waits for whoever inherited it, which may take its time.

    Another process, or a thread, that has got its number since does not count.
    """
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def pid_runs(pid: int) -> bool:
    """Whether the process `pid` exists and has not ended."""
    try:
        return runs(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


def until_ended(processes: Sequence[psutil.Process], deadline_s: float = DEADLINE_S) -> None:
    """Return when none of `processes` runs; AssertionError that shows those that do."""
    end = time.monotonic() + deadline_s
    while running := [process for process in processes if runs(process)]:
        assert time.monotonic() < end, f"not ended within {deadline_s:g} s: {[p.as_dict() for p in running]}"
        time.sleep(0.02)


class PodProcess:
    """A pod's main container as a process."""

    def __init__(
        self,
        name: str,
        words: list[str],
        environment: Mapping[str, str],
        directory: Path,
        inside: Sequence[str] = (),
        program: Sequence[str] = ("-m", "ringtrain"),
    ) -> None:
        """`inside`: a command before Python's, such as one that enters a network namespace; `program`: what Python
        runs."""
        self.name = name
        self.message_path = Path(environment["RINGTRAIN_TERMINATION_MESSAGE_PATH"])
        self.out_path = directory / f"{name}.out"
        self.err_path = directory / f"{name}.err"
        self.orphans: list[psutil.Process] = []
        with self.out_path.open("ab") as out, self.err_path.open("ab") as err:
            self.process = subprocess.Popen(
                [*inside, sys.executable, *program, *words],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait(self, deadline_s: float = DEADLINE_S) -> int:
        """Exit code, 128 + n for signal n."""
        code = self.process.wait(deadline_s)
        return 128 - code if code < 0 else code

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill the main process alone. In a container all others would end with it; `end` kills them."""
        with suppress(psutil.NoSuchProcess):
            self.orphans += psutil.Process(self.pid).children(recursive=True)
        self.process.kill()
        self.process.wait(DEADLINE_S)

    def end(self) -> None:
        """Kill what still runs of the main process and of what it has started."""
        if self.process.poll() is None:
            self.kill()
        for process in self.orphans:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def message(self) -> Any:
        """The termination message."""
        return json.loads(self.message_path.read_bytes())

    def err(self) -> str:
        return self.err_path.read_text()

    def out(self) -> str:
        return self.out_path.read_text()


def pod_environment(directory: Path, role: str, name: str, workers: int, slots: int) -> dict[str, str]:
    """Return the environment that the operator sets in every pod of the job `job`."""
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "RINGTRAIN_ROLE": role,
        "RINGTRAIN_JOB_NAME": "job",
        "RINGTRAIN_JOB_NAMESPACE": "default",
        "RINGTRAIN_JOB_UID": "uid-1",
        "RINGTRAIN_ATTEMPT": "1",
        "RINGTRAIN_NUM_WORKERS": str(workers),
        "RINGTRAIN_SLOTS_PER_WORKER": str(slots),
        "RINGTRAIN_POD_NAME": name,
        "RINGTRAIN_LOG_DIR": str(directory / "logs"),
        "RINGTRAIN_TERMINATION_MESSAGE_PATH": str(directory / f"{name}.message"),
    }


class GangProcesses:
    """One attempt of a job: start its pods, look at what they say, and leave nothing behind."""

    def __init__(self, directory: Path, workers: int, slots: int, **settings: str) -> None:
        self.directory = directory
        self.workers = workers
        self.slots = slots
        self.settings = settings
        self.control_port, self.status_port = free_ports(2)
        self.pods: list[PodProcess] = []
        self.logs = directory / "logs" / "default" / "job" / "1"

    def environment(self, role: str, name: str, index: int = 0) -> dict[str, str]:
        return {
            **pod_environment(self.directory, role, name, self.workers, self.slots),
            "TMPDIR": str(self.directory),
            "RINGTRAIN_BACKEND": "ring",
            "RINGTRAIN_WORKER_INDEX": str(index),
            "RINGTRAIN_LAUNCHER_ADDRESS": f"127.0.0.1:{self.control_port}",
            "RINGTRAIN_LAUNCHER_PORT": str(self.control_port),
            "RINGTRAIN_STATUS_PORT": str(self.status_port),
            "RINGTRAIN_AGENT_PORT": "0",
            "RINGTRAIN_RING_PORT_BASE": "0",
            "RINGTRAIN_MASTER_PORT": "0",
            "RINGTRAIN_TF_PORT_BASE": "0",
            "RINGTRAIN_POD_UID": f"uid of {name}",
            "RINGTRAIN_NODE_NAME": f"node-{index}",
            **self.settings,
        }

    def launcher(self, *, inside: Sequence[str] = (), **settings: str) -> PodProcess:
        environment = {**self.environment("launcher", "job-launcher"), **settings}
        return self._start(PodProcess("job-launcher", ["launcher"], environment, self.directory, inside))

    def agent(
        self, index: int, *command: str, name: str | None = None, inside: Sequence[str] = (), **settings: str
    ) -> PodProcess:
        name = name or f"job-worker-{index}"
        environment = {**self.environment("worker", name, index), **settings}
        return self._start(PodProcess(name, ["agent", "--", *command], environment, self.directory, inside))

    def data_worker(self, index: int) -> PodProcess:
        """A data worker of the job; may be called again for one that has ended."""
        name = f"job-data-{index}"
        environment = {**self.environment("data", name), "RINGTRAIN_DATA_INDEX": str(index)}
        return self._start(PodProcess(name, ["data-worker"], environment, self.directory))

    def script(self, name: str, script: str, environment: Mapping[str, str]) -> PodProcess:
        """A pod that runs a Python `script` instead of the `ringtrain` command."""
        return self._start(PodProcess(name, [], environment, self.directory, program=("-c", script)))

    def agents(self, *command: str) -> list[PodProcess]:
        return [self.agent(index, *command) for index in range(self.workers)]

    def python(self, script: str) -> tuple[str, ...]:
        """The command that runs `script` in Python."""
        return (sys.executable, "-c", script)

    def get(self, path: str) -> str:
        url = f"http://127.0.0.1:{self.status_port}{path}"
        with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
            body: bytes = answer.read()
        return body.decode()

    def status(self) -> Any:
        """`/status`, or an empty dict while there is no launcher."""
        try:
            return json.loads(self.get("/status"))
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return {}

    def until_running(self) -> None:
        """Wait until every rank of the gang runs."""
        until(
            "all ranks running",
            lambda: (status := self.status()) and all(rank["state"] == "Running" for rank in status["ranks"]),
        )

    def rank_log(self, rank: int) -> bytes:
        path = self.logs / f"rank-{rank:04d}.log"
        return path.read_bytes() if path.exists() else b""

    def job_log(self) -> list[bytes]:
        return (self.logs / "job.log").read_bytes().splitlines()

    def descendants(self) -> list[psutil.Process]:
        """Processes below the agents and the launcher."""
        found = []
        for pod in self.pods:
            if pod.process.poll() is None:
                found += psutil.Process(pod.pid).children(recursive=True)
        return found

    def close(self) -> None:
        """Kill what still runs."""
        for pod in self.pods:
            pod.end()

    def _start(self, pod: PodProcess) -> PodProcess:
        self.pods.append(pod)
        return pod
