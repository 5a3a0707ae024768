"""One attempt of an MPI job over several hosts: its pods as the operator starts them, with certificates."""

import shutil
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from support.gang import DEADLINE_S, PodProcess, pod_environment, until
from support.namespaces import Network
from support.ports import free_ports

from ringtrain_operator.build.credentials import issue_credentials
from ringtrain_operator.spec.job import Job
from ringtrain_operator.spec.parse import parse_job

# Saves when it is asked to stop, and quits when it is asked again. Ranks end seconds apart, and not well.
SAVE = """
import os, signal, time
asked = []
def save(*_):
    print("SIGTERM")
    asked.append(1)
    if len(asked) == 2:
        os._exit(9)
signal.signal(signal.SIGTERM, save)
print("trains")
while not asked:
    time.sleep(0.05)
until = time.monotonic() + 3 + 3 * int(os.environ["RANK"])
while time.monotonic() < until:
    time.sleep(0.05)
print("saved")
os._exit(1)
"""


def make_job(uid: str = "uid-1", *, launcher_as_worker: bool = False) -> Job:
    template = {"spec": {"containers": [{"name": "train", "image": "none", "command": ["true"]}]}}
    mpi = {"runLauncherAsWorker": launcher_as_worker}
    spec = {"backend": "mpi", "mpi": mpi, "worker": {"template": template}}
    metadata = {"name": "job", "namespace": "default", "uid": uid}
    manifest = {"apiVersion": "ringtrain.dev/v1alpha1", "kind": "DistributedTrainingJob"}
    return parse_job({**manifest, "metadata": metadata, "spec": spec})


def write_secrets(directory: Path, uid: str = "uid-1", *, launcher_as_worker: bool = False) -> dict[str, Path]:
    """The job's credentials as pods mount them: a directory for each role."""
    found = issue_credentials(make_job(uid, launcher_as_worker=launcher_as_worker), datetime.now(UTC))
    places = {}
    for role in ("launcher", "worker"):
        place = directory / f"secret-{uid}-{role}"
        place.mkdir(parents=True)
        for name in ("ca.crt", "token"):
            (place / name).write_bytes(found[name])
        (place / "tls.crt").write_bytes(found[f"{role}.crt"])
        (place / "tls.key").write_bytes(found[f"{role}.key"])
        places[role] = place
    return places


class MpiGang:
    """Launcher on the network's host 0, worker i on host i + 1."""

    def __init__(self, directory: Path, network: Network, slots: int, implementation: str, **settings: str) -> None:
        self.directory = directory
        self.network = network
        self.workers = len(network.hosts) - 1
        self.slots = slots
        self.control_port = 7350
        ports: dict[str, str] = {}
        if not network.hub:
            self.control_port, status_port = free_ports(2)
            anywhere = ("AGENT_PORT", "RING_PORT_BASE", "MASTER_PORT", "TF_PORT_BASE")
            ports = {f"RINGTRAIN_{name}": "0" for name in anywhere}
            ports |= {"RINGTRAIN_LAUNCHER_PORT": str(self.control_port), "RINGTRAIN_STATUS_PORT": str(status_port)}
        self.settings = {**ports, "RINGTRAIN_MPI_IMPLEMENTATION": implementation, **settings}
        self.secrets = write_secrets(directory)
        self.pods: list[PodProcess] = []
        self.launcher_settings: dict[str, str] = {}
        self.logs = directory / "logs" / "default" / "job" / "1"

    def with_launcher_as_worker(self) -> None:
        """The launcher runs ranks, too; it has both roles' names in its certificate."""
        self.workers += 1
        self.settings |= {"RINGTRAIN_MPI_LAUNCHER_AS_WORKER": "1"}
        self.launcher_settings = {"RINGTRAIN_POD_IP": self.network.hosts[0].address}
        self.secrets = write_secrets(self.directory / "both", launcher_as_worker=True)

    def launcher(self, *command: str, **settings: str) -> PodProcess:
        return self._start("launcher", 0, ["launcher", "--", *command], {**self.launcher_settings, **settings})

    def agents(self, **settings: str) -> list[PodProcess]:
        return [self.agent(index, **settings) for index in range(len(self.network.hosts) - 1)]

    def agent(self, index: int, **settings: str) -> PodProcess:
        return self._start("worker", index + 1, ["agent"], settings)

    def rank_log(self, rank: int) -> str:
        path = self.logs / f"rank-{rank:04d}.log"
        return path.read_text() if path.exists() else ""

    def wait_for_line(self, rank: int, text: str) -> None:
        until(f"rank {rank} says {text!r}", lambda: text in self.rank_log(rank))

    def finish(self, launcher: PodProcess, deadline_s: float = DEADLINE_S) -> int:
        """The launcher's exit code."""
        return launcher.wait(deadline_s)

    def close(self) -> None:
        """Kill what still runs, and what it has started."""
        for pod in self.pods:
            pod.end()

    def _environment(self, role: str, host: int) -> dict[str, str]:
        name = "job-launcher" if role == "launcher" else f"job-worker-{host - 1}"
        return {
            **pod_environment(self.directory, role, name, self.workers, self.slots),
            "HOME": str(self.directory),
            "TMPDIR": _short_temporary(self.directory, name),
            "RINGTRAIN_BACKEND": "mpi",
            "RINGTRAIN_WORKER_INDEX": str(host - 1),
            "RINGTRAIN_LAUNCHER_ADDRESS": f"{self.network.hosts[0].address}:{self.control_port}",
            "RINGTRAIN_NODE_NAME": f"node-{host}",
            "RINGTRAIN_SECRET_DIR": str(self.secrets[role]),
            **self.settings,
        }

    def _start(self, role: str, host: int, words: list[str], settings: Mapping[str, str]) -> PodProcess:
        environment = {**self._environment(role, host), **settings}
        name = environment["RINGTRAIN_POD_NAME"]
        inside = self.network.hosts[host].enter
        pod = PodProcess(name, words, environment, self.directory, inside)
        self.pods.append(pod)
        return pod


def _short_temporary(directory: Path, name: str) -> str:
    """A directory for the pod's temporary files: MPI makes sockets in it, whose paths end at 107 characters."""
    path = directory / name.removeprefix("job-")
    path.mkdir(exist_ok=True)
    return str(path)


def python(script: str) -> tuple[str, ...]:
    """The command that runs `script` in this Python."""
    return (sys.executable, "-u", "-c", script)


def missing(*programs: str) -> str:
    """Return those of `programs` that are not in PATH."""
    return ", ".join(program for program in programs if not shutil.which(program))
