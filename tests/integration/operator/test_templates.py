"""Pod templates against Kubernetes' own schema: on the operator's side, and `dtj validate`."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from support.apiserver import ControlPlane
from support.cluster import Cluster, OpenCluster, fake_cluster, namespace_of, real_cluster
from support.jobs import condition, job
from support.operating import running_operator

from ringtrain_client.cli.main import main
from ringtrain_operator.cluster.api.resources import JOBS, PODS
from ringtrain_operator.cluster.pod_schema import read_pod_schema
from ringtrain_operator.spec.pod_schema import packaged_pod_spec_schema

Json = dict[str, Any]


def with_pod(name: str, **pod: Any) -> Json:
    """A job whose worker's pod has these fields."""
    found = job(name)
    found["spec"]["worker"]["template"]["spec"].update(pod)
    return found


def document(**new_fields: Json) -> Json:
    """An OpenAPI document of a server whose pods have a name for containers, and these fields."""
    strings = {"type": "array", "items": {"type": "string"}}
    container = {"type": "object", "properties": {k: {"type": "string"} for k in ("name", "image")}}
    container["properties"]["command"] = strings
    pod = {"type": "object", "properties": {"containers": {"type": "array", "items": container}, **new_fields}}
    template = {"type": "object", "properties": {"metadata": {"type": "object"}, "spec": pod}}
    return {"components": {"schemas": {"io.k8s.api.core.v1.PodTemplateSpec": template}}}


async def until_refused(c: Cluster, namespace: str, name: str, path: str) -> str:
    """Return the message of Accepted=False once it names the field `path`."""
    found = await c.until(JOBS, namespace, name, lambda j: j and path in condition(j, "Accepted").get("message", ""))
    accepted = condition(found, "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "InvalidSpec")
    return str(accepted["message"])


async def test_a_misspelt_field_is_said(open_cluster: OpenCluster) -> None:
    """The API server takes the job; its status says which field is none and what was meant; there is no pod."""
    async with namespace_of(open_cluster()) as (c, ns):
        await c.api.create(JOBS, ns, with_pod("typo", nodeSelecter={"disk": "ssd"}))
        async with running_operator(c.operator_connection, namespaces=(ns,)):
            accepted = await until_refused(c, ns, "typo", "spec.worker.template.spec.nodeSelecter")
            assert "did you mean nodeSelector?" in accepted
            assert await c.api.select(PODS, ns) == []


async def test_a_field_that_only_the_cluster_knows_is_one() -> None:
    """The server's own schema counts: its new field is a field, and one that it lacks is none."""
    async with fake_cluster() as c:
        assert c.fake is not None
        c.fake.openapi = document(quantumLink={"type": "boolean"})
        ns = await c.new_namespace()
        await c.api.create(JOBS, ns, with_pod("newer", quantumLink=True))
        await c.api.create(JOBS, ns, with_pod("wrong", quantumLink="on"))
        await c.api.create(JOBS, ns, with_pod("older", nodeSelector={"disk": "ssd"}))
        async with running_operator(c.operator_connection, namespaces=(ns,)):
            await c.until_exists(PODS, ns, "newer-worker-0")
            assert "true or false" in await until_refused(c, ns, "wrong", "quantumLink")
            assert "Kubernetes 1.30" in await until_refused(c, ns, "older", "nodeSelector")


async def test_validate_asks_the_cluster_when_told_to(tmp_path: Path) -> None:
    """Without --server the message names it as the way out; with it the cluster's fields are fields."""
    manifest = tmp_path / "job.yaml"
    manifest.write_text(yaml.safe_dump(with_pod("newer", quantumLink=True)))
    async with fake_cluster() as c:
        assert c.fake is not None
        c.fake.openapi = document(quantumLink={"type": "boolean"})
        options = ["validate", str(manifest)]
        alone = await asyncio.to_thread(CliRunner().invoke, main, options)
        assert alone.exit_code == 1
        assert "quantumLink: is not a field here" in alone.output
        assert "--server" in alone.output
        asked = [*options, "--server", f"--kubeconfig={c.kubeconfig(tmp_path)}"]
        result = await asyncio.to_thread(CliRunner().invoke, main, asked)
        assert (result.exit_code, "newer is valid" in result.output) == (0, True), result.output
        submitted = ["submit", str(manifest), f"--kubeconfig={c.kubeconfig(tmp_path)}"]
        result = await asyncio.to_thread(CliRunner().invoke, main, submitted)
        assert result.exit_code == 0, result.output


@pytest.mark.apiserver
async def test_the_packages_schema_is_kubernetes(control_plane: ControlPlane) -> None:
    """A server of the version that the package knows has the same schema."""
    async with real_cluster(control_plane) as c:
        served = await read_pod_schema(c.api)
        if served.version != packaged_pod_spec_schema().version:
            pytest.skip(f"the API server is {served.version}, the package knows {packaged_pod_spec_schema().version}")
        assert served.definitions == packaged_pod_spec_schema().definitions
