"""Code that runs in a Spark task or a Ray actor: describe the task, and run an agent that starts the rank."""

import json
import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from ringtrain.shared import contract
from ringtrain.shared.address import own_address
from ringtrain.shared.place import RankPlace, job_variables
from ringtrain.shared.processes import run_folder, start_child
from ringtrain_clusters.tasks.plan import Task, TaskRun, task_place_variables

WORK, RESULT, PLACE, SECRETS, RANK = "work", "result", "place.json", "secrets", "rank"
# Seconds to check that the launcher still listens, and until a lost agent is restarted.
_CALL_S: Final = 10.0
_AGAIN_S: Final = 1.0


def describe_task(run_launcher: str, partition: int) -> Task:
    """Return partition, host and IP address of this task. `run_launcher`: the launcher's address. Raises OSError if
    its name is unknown."""
    return Task(partition, _task_host(), own_address(run_launcher))


def run_agent(run: TaskRun, task: Task, place: RankPlace) -> bytes | None:
    """Run the rank with the numbers `place` under an agent, which sends log lines to the launcher.

    Return the rank's pickled result; None if the rank has no result.

    No started process outlives this call or this process.
    """
    with run_folder() as folder:
        return _run_task_in(folder, run, task, place)


def run_elastic_agent(run: TaskRun, task: Task) -> tuple[int, int, bytes] | None:
    """Run an agent with an elastic rank, and restart it until a rank has a result or the launcher has ended.

    Return the rank number that the last process had, the size of its world, and its pickled result; None if there is no
    result.
    """
    with run_folder() as folder:
        while _is_launcher_there(run.launcher):
            result = _run_task_in(folder, run, task, None)
            if result is not None:
                rank, size = (folder / RANK).read_text().split()
                return int(rank), int(size), result
            time.sleep(_AGAIN_S)
    return None


def _is_launcher_there(launcher: str) -> bool:
    host, _, port = launcher.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CALL_S).close()
    except OSError:
        return False
    return True


def _run_task_in(folder: Path, run: TaskRun, task: Task, place: RankPlace | None) -> bytes | None:
    (folder / WORK).write_bytes(run.work)
    (folder / PLACE).write_text(json.dumps(task_place_variables(place) if place else {}))
    (folder / SECRETS).mkdir(exist_ok=True)
    for name, content in run.secrets.items():
        (folder / SECRETS / name).write_bytes(content)
    python = run.executable or sys.executable
    agent = [python, "-m", "ringtrain", "agent", "--log-level", run.level, "--"]
    rank = [python, "-m", "ringtrain_clusters.tasks.rank", str(folder), run.pickler]
    start_child([*agent, *rank], _task_variables(run, task, place, folder)).wait()
    with suppress(FileNotFoundError):
        return (folder / RESULT).read_bytes()
    return None


def _task_variables(run: TaskRun, task: Task, place: RankPlace | None, folder: Path) -> dict[str, str]:
    """Return the environment of a task's agent. The agent acts as a worker with one rank."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RINGTRAIN_")}
    return {
        **inherited,
        # Files that were sent with the job (--py-files) are on the task's sys.path, but not in its environment.
        "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
        **run.env,
        **job_variables(run.name, run.scheduler.lower(), run.name, run.size, 1),
        contract.ENV_ROLE: contract.ROLE_WORKER,
        contract.ENV_WORKER_INDEX: str(place.rank if place else task.partition),
        contract.ENV_LAUNCHER_ADDRESS: run.launcher,
        contract.ENV_SECRET_DIR: str(folder / SECRETS),
        contract.ENV_RUN_FOLDER: str(folder),
        contract.ENV_START_TIMEOUT: f"{run.start_timeout_s:g}",
        contract.ENV_AGENT_PORT: "0",
        contract.ENV_RING_PORT_BASE: "0",
        contract.ENV_MASTER_PORT: "0",
        contract.ENV_TF_PORT_BASE: "0",
        contract.ENV_POD_NAME: f"task-{task.partition}",
        contract.ENV_POD_IP: task.address,
        **({contract.ENV_ELASTIC: run.on_loss} if run.on_loss else {}),
    }


def _task_host() -> str:
    """Return an identifier of this host and its memory: host name, boot ID and Linux namespaces.

    Processes with equal identifiers can share memory. Containers on one machine have different identifiers, even if
    they share memory.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    spaces = [os.readlink(f"/proc/self/ns/{name}") for name in ("ipc", "mnt", "net")]
    return " ".join([socket.gethostname(), boot, *spaces])
