"""kubectl against the real API server: the manifests, the table, scale, quotas."""

import asyncio
import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest
import yaml
from support.apiserver import ControlPlane
from support.cluster import namespace_of, real_cluster
from support.installation import ROOT
from support.jobs import job
from support.operating import running_operator
from support.scenario import open_scenario

from ringtrain_operator.cluster.api.resources import JOBS, PODS

pytestmark = [
    pytest.mark.apiserver,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl"),
]


async def kubectl(plane: ControlPlane, *arguments: str) -> str:
    """Run kubectl as admin and return its output."""
    command = ["kubectl", f"--kubeconfig={plane.kubeconfig()}", *arguments]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{arguments}: {done.stderr}"
    return done.stdout


async def test_the_manifests_are_accepted(control_plane: ControlPlane) -> None:
    """`kubectl apply -f manifests/` and the samples, as the API server validates them."""
    await kubectl(control_plane, "apply", "--dry-run=server", f"--filename={ROOT / 'manifests'}")
    for sample in sorted((ROOT / "manifests" / "samples").glob("*.yaml")):
        await kubectl(control_plane, "create", "--dry-run=server", f"--filename={sample}")


async def test_kubectl_shows_and_scales_a_job(control_plane: ControlPlane, tmp_path: Path) -> None:
    """The short name; the columns, and the wide ones after a pod was taken away; a scale makes a new attempt."""
    async with open_scenario(partial(real_cluster, control_plane), tmp_path) as s:
        await s.submit()
        await s.until_running()
        # From then on a pod that is gone begins another attempt, also if nobody saw it end.
        await s.until_condition("Running", "False", "WaitingForLauncher")
        table = await kubectl(control_plane, "get", "dtj", "-n", s.namespace)
        assert table.splitlines()[0].split() == ["NAME", "STATE", "WORKERS", "RESTARTS", "PROGRESS", "AGE"]
        await s.cluster.api.delete(PODS, s.namespace, "digits-worker-1")
        await s.until_running(attempt=2)
        wide = (await kubectl(control_plane, "get", "dtj", "-n", s.namespace, "-o=wide")).splitlines()
        assert wide[0].split()[-6:] == ["PROGRESS", "REASON", "FORMATION", "DISRUPTIONS", "AGE", "MESSAGE"]
        assert wide[1][wide[0].index("REASON") :].split()[:2] == ["Disrupted", "1"]
        await kubectl(control_plane, "scale", "dtj", "digits", "--replicas=3", "-n", s.namespace)
        await s.until_running(attempt=3, workers=3)
        described = await kubectl(control_plane, "describe", "dtj", "digits", "-n", s.namespace)
        assert "AttemptStarted" in described


async def test_kubectl_alone_says_why_a_job_waits(control_plane: ControlPlane) -> None:
    """Pods that no node has room for: the wide table, the conditions and the events say it, and `wait` ends."""
    async with namespace_of(real_cluster(control_plane)) as (c, ns):
        await c.api.create(JOBS, ns, job())
        async with running_operator(c.operator_connection, namespaces=(ns,)):
            await c.until_exists(PODS, ns, "digits-worker-1")
            why = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
            scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}
            status = {"status": {"conditions": [scheduled]}}
            await c.api.patch(PODS, ns, "digits-worker-1", status, subresource="status")
            name = ("dtj", "digits", "-n", ns)
            for waited in ("jsonpath={.status.reason}=Unschedulable", "condition=Running=false"):
                await kubectl(control_plane, "wait", *name, f"--for={waited}", "--timeout=120s")
            said = f"digits-worker-1: {why}"
            assert said in await kubectl(control_plane, "get", *name, "-o=wide")
            assert said in (await kubectl(control_plane, "describe", *name)).partition("Events:")[0]
            while said not in (await kubectl(control_plane, "describe", *name)).partition("Events:")[2]:
                await c.pause()  # an event follows the status


async def test_a_quota_is_said_in_its_own_words(control_plane: ControlPlane, tmp_path: Path) -> None:
    """A ResourceQuota's refusal is in the condition; when the quota goes, the job runs."""
    async with open_scenario(partial(real_cluster, control_plane), tmp_path) as s:
        quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}}
        file = tmp_path / "quota.yaml"
        file.write_text(yaml.safe_dump({**quota, "spec": {"hard": {"pods": "1"}}}))
        await kubectl(control_plane, "apply", "-n", s.namespace, f"--filename={file}")
        while "pods" not in await kubectl(
            control_plane, "get", "quota", "few", "-n", s.namespace, "-o=jsonpath={.status.hard}"
        ):
            await s.cluster.pause()
        await s.submit()
        await s.until_condition("Running", "False", "exceeded quota: few")
        await kubectl(control_plane, "delete", "quota", "few", "-n", s.namespace)
        s.skip(60)  # it may have given back by then what was admitted
        await s.until_condition("Running", "False", "WaitingForLauncher")


async def test_a_quota_on_limits_admits_a_job(control_plane: ControlPlane, tmp_path: Path) -> None:
    """Under a ResourceQuota that asks every pod for requests and limits, workers that have them are enough."""
    async with open_scenario(partial(real_cluster, control_plane), tmp_path) as s:
        hard = {"limits.cpu": "8", "limits.memory": "16Gi", "requests.cpu": "8", "requests.memory": "16Gi"}
        quota = {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "bounds"},
            "spec": {"hard": hard},
        }
        file = tmp_path / "quota.yaml"
        file.write_text(yaml.safe_dump(quota))
        await kubectl(control_plane, "apply", "-n", s.namespace, f"--filename={file}")
        while "limits.cpu" not in await quota_used(control_plane, s.namespace):
            await s.cluster.pause()
        worker = job()["spec"]["worker"]
        amounts = {"cpu": "1", "memory": "1Gi"}
        worker["template"]["spec"]["containers"][0]["resources"] = {"limits": amounts, "requests": amounts}
        await s.submit(worker=worker)
        await s.until_running()
        while '"limits.cpu":"4"' not in (used := await quota_used(control_plane, s.namespace)):
            assert '"limits.cpu":"' in used
            await s.cluster.pause()


async def quota_used(plane: ControlPlane, namespace: str) -> str:
    """Return the used amounts of the quota, as kubectl prints them."""
    return await kubectl(plane, "get", "quota", "bounds", "-n", namespace, "-o=jsonpath={.status.used}")
