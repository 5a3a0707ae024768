"""What the real API server refuses of a job's pods, and what it admits where Pod Security is strictest."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.apiserver import ControlPlane
from support.cluster import real_cluster
from support.jobs import job
from support.objects import NAMESPACES
from support.scenario import open_scenario

pytestmark = pytest.mark.apiserver
RESTRICTED = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}


def worker(**pod: Any) -> dict[str, Any]:
    """The worker part of a spec, with changes to its pod's spec."""
    part: dict[str, Any] = job()["spec"]["worker"]
    part["template"]["spec"].update(pod)
    return part


async def test_the_strictest_namespace_takes_our_pods(control_plane: ControlPlane, tmp_path: Path) -> None:
    """Pod Security `restricted` is enforced, and a job that says nothing about security runs."""
    async with open_scenario(partial(real_cluster, control_plane), tmp_path) as s:
        await s.cluster.api.patch(NAMESPACES, None, s.namespace, RESTRICTED)
        await s.submit()
        await s.until_running()
        s.succeed()
        await s.until_state("Succeeded")


async def test_what_pod_security_refuses_is_said(control_plane: ControlPlane, tmp_path: Path) -> None:
    """A template that asks for the host's network there: the condition has the admission's own words."""
    async with open_scenario(partial(real_cluster, control_plane), tmp_path) as s:
        await s.cluster.api.patch(NAMESPACES, None, s.namespace, RESTRICTED)
        await s.submit(worker=worker(hostNetwork=True))
        running = await s.until_condition("Running", "False", "violates PodSecurity")
        assert (running["reason"], "hostNetwork=true" in running["message"]) == ("CreationRefused", True)


async def test_a_template_that_breaks_a_rule_is_said(control_plane: ControlPlane, tmp_path: Path) -> None:
    """What only the API server knows of pods: the condition names the field, with its own words."""
    twice = {"name": "data", "emptyDir": {}, "hostPath": {"path": "/data"}}
    async with open_scenario(partial(real_cluster, control_plane), tmp_path) as s:
        await s.submit(worker=worker(volumes=[twice]))
        running = await s.until_condition("Running", "False", "spec.volumes[0].hostPath")
        assert "may not specify more than 1 volume type" in running["message"]
        await s.change({"worker": {"replicas": 1}})  # it goes on being looked at
        await s.until(lambda j: j["status"].get("ledger", {}).get("attemptWorkers") == 1)
