"""A real launcher process, and what it costs."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import psutil
from support.certificates import JobAuthority
from support.ports import free_ports

UID = "uid-1"
# Connections of 10,000 agents, and a log for each of 80,000 ranks.
_FILES = 1 << 18


def allow_files() -> int:
    """Let this process and its children open many files; how many they may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES, max(hard, _FILES)))
    except (OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class Launcher:
    """The launcher of a job of `workers` workers, on one core of its own."""

    def __init__(self, folder: Path, workers: int, slots: int) -> None:
        self._folder = folder
        authority = JobAuthority(UID)
        secrets = {role: authority.secret_dir(folder / role, role) for role in ("launcher", "worker")}
        port, status = free_ports(2)
        common = {
            **{k: os.environ[k] for k in ("PATH", "PYTHONPATH") if k in os.environ},
            "RINGTRAIN_JOB_NAME": "job",
            "RINGTRAIN_JOB_NAMESPACE": "default",
            "RINGTRAIN_JOB_UID": UID,
            "RINGTRAIN_ATTEMPT": "1",
            "RINGTRAIN_NUM_WORKERS": str(workers),
            "RINGTRAIN_SLOTS_PER_WORKER": str(slots),
            "RINGTRAIN_LAUNCHER_ADDRESS": f"127.0.0.1:{port}",
            "RINGTRAIN_TERMINATION_MESSAGE_PATH": str(folder / "message"),
        }
        self.agent_environment = {
            **common,
            "RINGTRAIN_ROLE": "worker",
            "RINGTRAIN_WORKER_INDEX": "0",
            "RINGTRAIN_SECRET_DIR": str(secrets["worker"]),
        }
        self._environment = {
            **common,
            "RINGTRAIN_ROLE": "launcher",
            "RINGTRAIN_SECRET_DIR": str(secrets["launcher"]),
            "RINGTRAIN_LAUNCHER_PORT": str(port),
            "RINGTRAIN_STATUS_PORT": str(status),
            "RINGTRAIN_STATUS_TOKEN": "status-token",
            "RINGTRAIN_LOG_DIR": str(folder / "logs"),
        }
        self._process = self._begin()

    def restart(self) -> None:
        """Kill it as a machine would, and start it again."""
        self.kill()
        self._process = self._begin()

    def kill(self) -> None:
        """End it at once."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    @property
    def cpu_s(self) -> float:
        """CPU seconds so far."""
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)

    @property
    def rss_mib(self) -> float:
        """Memory that is resident."""
        return round(psutil.Process(self._process.pid).memory_info().rss / 2**20, 1)

    @property
    def threads(self) -> int:
        """Number of threads of the launcher's process."""
        return psutil.Process(self._process.pid).num_threads()

    def said(self) -> str:
        """Its own log."""
        return (self._folder / "launcher.err").read_text(errors="replace")

    def _begin(self) -> subprocess.Popen[bytes]:
        with (self._folder / "launcher.err").open("ab") as err, (self._folder / "launcher.out").open("ab") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "ringtrain", "launcher"], env=self._environment, stdout=out, stderr=err
            )
        os.sched_setaffinity(process.pid, {0})
        return process
