"""Jobs in their nodes' network: what several pods of a node would have in common is each job's own."""

import asyncio
from pathlib import Path
from typing import Any

from support.cluster import OpenCluster
from support.jobs import python_job, state
from support.kubelet import ProcessRuntime
from support.scenario import operated

from ringtrain_operator.cluster.api.resources import JOBS, PODS, SERVICES

# All ranks of a job meet, and then all jobs.
PROGRAM = """
import os, pathlib, time
import ringtrain as rt
rt.init()
mark = pathlib.Path(os.environ["GO_ON"])
(mark / f"{os.environ['RINGTRAIN_JOB_NAME']}-{rt.rank()}-of-{rt.size()}").touch()
while len(list(mark.iterdir())) < 4:
    time.sleep(0.05)
"""


def on_its_node(name: str, meeting: Path) -> dict[str, Any]:
    """Two workers and their launcher."""
    made = python_job(name, PROGRAM, meeting, workers=2, launcher={"template": {"spec": {"hostNetwork": True}}})
    made["spec"]["worker"]["template"]["spec"]["hostNetwork"] = True
    return made


async def test_two_jobs_share_a_node(open_cluster: OpenCluster, tmp_path: Path, runtime: ProcessRuntime) -> None:
    """Launchers and workers of both run at the same time, and each job's ranks meet.

    The ports that launchers take are reserved by their pods, so that a scheduler parts those that would collide.
    """
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    async with operated(open_cluster(), runtime, tmp_path / "nodes", nodes=("node-a",)) as (c, ns):
        for name in ("one", "two"):
            await c.api.create(JOBS, ns, on_its_node(name, meeting))
        done = [await c.until(JOBS, ns, name, lambda j: state(j) in ("Succeeded", "Failed")) for name in ("one", "two")]
        assert [state(job) for job in done] == ["Succeeded"] * 2, done
        found = await asyncio.gather(*(c.api.get(PODS, ns, f"{name}-launcher") for name in ("one", "two")))
        ports = [[port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]] for pod in found]
        services = [await c.api.get(SERVICES, ns, name) for name in ("one", "two")]
        assert [[port["port"] for port in service["spec"]["ports"]] for service in services] == ports
        assert len({port for both in ports for port in both}) == 4
        assert all(20000 <= port < 30000 for both in ports for port in both)
    assert {path.name for path in meeting.iterdir()} == {
        f"{name}-{rank}-of-2" for name in ("one", "two") for rank in (0, 1)
    }
