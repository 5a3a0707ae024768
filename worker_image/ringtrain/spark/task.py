"""In a task of Spark's barrier stage: find this task's rank with the others, and run an agent with that rank."""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ringtrain.shared import contract
from ringtrain.shared.address import own_address
from ringtrain.shared.processes import start_child
from ringtrain.spark.plan import SparkPlace, SparkRun, Task, places

WORK, RESULT, PLACE, SECRETS = "work", "result", "place.json", "secrets"


def rank_of(run: SparkRun) -> Callable[[Iterable[Any]], Iterator[tuple[int, bytes | None]]]:
    """What each task runs: it yields (rank, pickled result), None for a rank that failed."""

    def task(_: Iterable[Any]) -> Iterator[tuple[int, bytes | None]]:
        from pyspark import BarrierTaskContext

        context = BarrierTaskContext.get()
        own = Task(context.partitionId(), _host(), own_address(run.launcher))
        everyone = [Task(**json.loads(text)) for text in context.allGather(json.dumps(asdict(own)))]
        place = places(everyone)[own.partition]
        with tempfile.TemporaryDirectory(prefix="ringtrain-") as folder:
            yield place.rank, _run_agent(run, own, place, Path(folder))

    return task


def _run_agent(run: SparkRun, task: Task, place: SparkPlace, folder: Path) -> bytes | None:
    """Run the rank under an agent, which ships its output; returns what the rank has left as its result."""
    (folder / WORK).write_bytes(run.work)
    (folder / PLACE).write_text(json.dumps(place.variables()))
    (folder / SECRETS).mkdir()
    for name, content in run.secrets.items():
        (folder / SECRETS / name).write_bytes(content)
    python = run.executable or sys.executable
    agent = [python, "-m", "ringtrain", "agent", "--log-level", run.level, "--"]
    start_child(
        [*agent, python, "-m", "ringtrain.spark.rank", str(folder)], _variables(run, task, place, folder)
    ).wait()
    with suppress(FileNotFoundError):
        return (folder / RESULT).read_bytes()
    return None


def _variables(run: SparkRun, task: Task, place: SparkPlace, folder: Path) -> dict[str, str]:
    """What an agent is told: it is one of as many workers as there are ranks, with one slot."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RINGTRAIN_")}
    return {
        **inherited,
        # Files that were sent with the job (--py-files) are on the task's path, and not in its environment.
        "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
        **run.env,
        contract.ENV_ROLE: contract.ROLE_WORKER,
        contract.ENV_JOB_NAME: run.name,
        contract.ENV_JOB_NAMESPACE: "spark",
        contract.ENV_JOB_UID: run.name,
        contract.ENV_ATTEMPT: "1",
        contract.ENV_BACKEND: "ring",
        contract.ENV_NUM_WORKERS: str(run.size),
        contract.ENV_SLOTS_PER_WORKER: "1",
        contract.ENV_WORKER_INDEX: str(place.rank),
        contract.ENV_LAUNCHER_ADDRESS: run.launcher,
        contract.ENV_SECRET_DIR: str(folder / SECRETS),
        contract.ENV_START_TIMEOUT: f"{run.start_timeout_s:g}",
        contract.ENV_AGENT_PORT: "0",
        contract.ENV_RING_PORT_BASE: "0",
        contract.ENV_MASTER_PORT: "0",
        contract.ENV_TF_PORT_BASE: "0",
        contract.ENV_POD_NAME: f"task-{task.partition}",
        contract.ENV_POD_IP: task.address,
        contract.ENV_TERMINATION_MESSAGE_PATH: os.devnull,
    }


def _host() -> str:
    """The same for processes that share this machine's memory: containers of one machine need not."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    spaces = [os.readlink(f"/proc/self/ns/{name}") for name in ("ipc", "mnt", "net")]
    return " ".join([socket.gethostname(), boot, *spaces])
