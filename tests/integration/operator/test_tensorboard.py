"""`dtj tensorboard`: a real TensorBoard shows what a job's ranks report, while they do."""

import asyncio
import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from support.cluster import fake_cluster, namespace_of
from support.deadlines import patient
from support.jobs import python_job, state
from support.kubelet import Kubelet, ProcessRuntime
from support.needs import need
from support.operating import running_operator
from support.ports import free_ports

from ringtrain_operator.cluster.api.resources import JOBS

need("tensorboard")
ROOT = Path(__file__).parents[3]
DTJ = [sys.executable, "-m", "ringtrain_client.cli"]
# TensorBoard asks for this module, and does not load TensorFlow, which takes long.
WITHOUT_TENSORFLOW = """
import sys, types
sys.modules["tensorboard.compat.notf"] = types.ModuleType("notf")
"""
# Reports one step, waits for a file, and reports another.
PROGRAM = """
import os, pathlib, time
import ringtrain
ringtrain.report(1, loss=2.0)
while not pathlib.Path(os.environ["GO_ON"]).exists():
    time.sleep(0.05)
ringtrain.report(2, loss=1.0)
while not pathlib.Path(os.environ["GO_ON"] + "-end").exists():
    time.sleep(0.05)
"""


def reporting_job(go_on: Path) -> dict[str, Any]:
    """One rank."""
    return python_job("talk", PROGRAM, go_on)


def has_reported(job: Any) -> bool:
    """Whether the first report is known to the launcher."""
    return ((job.get("status") or {}).get("progress") or {}).get("step") == 1


def losses(port: int) -> list[tuple[int, float]]:
    """Steps and losses of rank 0, as TensorBoard's page asks for them; empty before there are any."""
    url = f"http://127.0.0.1:{port}/data/plugin/scalars/scalars?run=rank-0000&tag=loss"
    try:
        with urllib.request.urlopen(url, timeout=patient(60)) as answer:
            return [(step, value) for _, step, value in json.load(answer)]
    except (urllib.error.URLError, ConnectionError):
        return []


async def until_losses(port: int, dtj: asyncio.subprocess.Process, *wanted: tuple[int, float]) -> None:
    """Return when TensorBoard shows exactly these."""
    while (found := await asyncio.to_thread(losses, port)) != list(wanted):
        assert dtj.returncode is None, found
        await asyncio.sleep(0.2)


async def test_it_shows_reports_as_they_come(tmp_path: Path, venv_bin: Path) -> None:
    """From the launcher's pod into a TensorBoard here that ends with dtj; with no launcher it says what helps."""
    go_on = tmp_path / "go-on"
    path = f"{venv_bin}:{os.environ['PATH']}"
    (port,) = free_ports(1)
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_TENSORFLOW)
    async with namespace_of(fake_cluster()) as (c, ns):
        command = [*DTJ, "tensorboard", "talk", "--namespace", ns, "--port", str(port)]
        environment = {
            **os.environ,
            "KUBECONFIG": str(c.kubeconfig(tmp_path)),
            "PATH": path,
            "PYTHONPATH": str(tmp_path),
        }
        async with (
            Kubelet(c.api, ProcessRuntime(ROOT, {"PATH": path}), tmp_path / "nodes", namespace=ns),
            running_operator(c.operator_connection, namespaces=(ns,)),
        ):
            await c.api.create(JOBS, ns, reporting_job(go_on))
            await c.until(JOBS, ns, "talk", has_reported)
            dtj = await asyncio.create_subprocess_exec(*command, env=environment)
            await until_losses(port, dtj, (1, 2.0))
            go_on.touch()
            await until_losses(port, dtj, (1, 2.0), (2, 1.0))
            dtj.terminate()
            await dtj.wait()
            (tmp_path / "go-on-end").touch()
            await c.until(JOBS, ns, "talk", lambda j: state(j) == "Succeeded")
            late = await asyncio.create_subprocess_exec(*command, env=environment, stderr=asyncio.subprocess.PIPE)
            _, said = await late.communicate()
            assert late.returncode == 1
            assert b"spec.logs stores reports neither on a claim nor at a uri" in said
        while await asyncio.to_thread(losses, port):  # the server has ended with dtj
            await asyncio.sleep(0.1)
