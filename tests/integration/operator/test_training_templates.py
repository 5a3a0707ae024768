"""Jobs that name a template: read once, kept, and said where it is missing or makes no job."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from support.apiserver import ControlPlane
from support.cluster import Cluster, OpenCluster, namespace_of, real_cluster
from support.jobs import condition, job, state
from support.operating import running_operator

from ringtrain_client.cli.main import main
from ringtrain_client.jobs.backends import ClusterBackend
from ringtrain_client.jobs.causes import read_causes
from ringtrain_client.jobs.runs import AsyncClient
from ringtrain_client.jobs.session import ClusterAccess
from ringtrain_operator.cluster.api.errors import Unprocessable
from ringtrain_operator.cluster.api.resources import JOBS, PODS, TEMPLATES
from ringtrain_operator.errors import Invalid
from ringtrain_operator.plan import planning

Json = dict[str, Any]
OF_NAMESPACE, OF_CLUSTER = TEMPLATES["TrainingTemplate"], TEMPLATES["ClusterTrainingTemplate"]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A template that is missing is looked for again at once."""
    monkeypatch.setattr(planning, "TEMPLATE_AGAIN_S", 0.1)


def template(name: str, image: str = "train:1", **spec: Any) -> Json:
    """A TrainingTemplate whose jobs are those of tests."""
    worker = job()["spec"]["worker"]
    del worker["replicas"]
    worker["template"]["spec"]["containers"][0]["image"] = image
    return {
        "apiVersion": OF_NAMESPACE.api_version,
        "kind": OF_NAMESPACE.kind,
        "metadata": {"name": name},
        "spec": {"description": "of tests", "job": {"worker": worker, **spec}},
    }


def naming(name: str, kind: str = "TrainingTemplate", **spec: Any) -> Json:
    """A job that says nothing but its template."""
    made = job()
    made["spec"] = {"templateRef": {"kind": kind, "name": name}, "worker": {"replicas": 2}, **spec}
    return made


async def image_of(c: Cluster, namespace: str, pod: str) -> str:
    """The image of the pod's first container, as soon as the pod is there."""
    found = await c.until_exists(PODS, namespace, pod)
    return str(found["spec"]["containers"][0]["image"])


async def test_a_job_goes_on_when_its_template_comes_and_keeps_it(open_cluster: OpenCluster) -> None:
    """Until then a condition names the field. What becomes of the template later is said, and changes no pod."""
    async with namespace_of(open_cluster()) as (c, ns):
        session = ClusterAccess(c.api, ns)
        await c.api.create(JOBS, ns, naming("small"))
        async with running_operator(c.operator_connection, namespaces=(ns,)):
            found = await c.until(JOBS, ns, "digits", lambda j: state(j) == "Rejected")
            said = "spec.templateRef.name: TrainingTemplate small does not exist in namespace"
            assert condition(found, "Accepted")["message"].startswith(said)
            assert await c.api.select(PODS, ns) == []

            await c.api.create(OF_NAMESPACE, ns, template("small"))
            assert await image_of(c, ns, "digits-worker-1") == "train:1"
            found = await c.until(JOBS, ns, "digits", lambda j: state(j) == "Pending")
            kept = found["status"]["template"]
            assert condition(found, "Accepted")["message"].endswith(f"as of its acceptance ({kept['hash']})")
            assert "since" not in "".join(line for line in await read_causes(session, "digits") if "small" in line)

            await c.api.patch(OF_NAMESPACE, ns, "small", {"spec": template("small", "train:2")["spec"]})
            assert (
                f"TrainingTemplate small has changed since: the job uses the version of its acceptance "
                f"({kept['hash']})" in "".join(await read_causes(session, "digits"))
            )
            await c.api.patch(JOBS, ns, "digits", {"spec": {"runPolicy": {"suspend": True}}})
            await c.until_gone(PODS, ns, "digits-worker-1")
            await c.api.delete(OF_NAMESPACE, ns, "small")
            await c.api.patch(JOBS, ns, "digits", {"spec": {"runPolicy": {"suspend": False}}})
            assert await image_of(c, ns, "digits-worker-1") == "train:1"
            found = await c.api.get(JOBS, ns, "digits")
            assert found["status"]["template"] == kept
            assert "TrainingTemplate small was deleted" in "".join(await read_causes(session, "digits"))


async def test_a_template_that_makes_no_valid_job_is_said(open_cluster: OpenCluster) -> None:
    """With the field and the template, which may be corrected; a suspended job may name another, and is suspended
    whatever it names."""
    async with namespace_of(open_cluster()) as (c, ns):
        await c.api.create(OF_NAMESPACE, ns, template("small", backend="mpi", networking={"encryption": "tensors"}))
        await c.api.create(OF_NAMESPACE, ns, template("other", "train:3"))
        await c.api.create(JOBS, ns, naming("small"))
        async with running_operator(c.operator_connection, namespaces=(ns,)):
            found = await c.until(JOBS, ns, "digits", lambda j: state(j) == "Rejected")
            message = condition(found, "Accepted")["message"]
            assert message.startswith("spec.networking.encryption: ")
            assert "(the job merged with TrainingTemplate small, " in message
            await c.api.patch(OF_NAMESPACE, ns, "small", {"spec": {"job": {"backend": None}}})
            assert await image_of(c, ns, "digits-worker-0") == "train:1"

            await c.api.patch(JOBS, ns, "digits", {"spec": {"runPolicy": {"suspend": True}}})
            await c.api.patch(JOBS, ns, "digits", {"spec": {"templateRef": {"name": "missing"}}})
            await c.until_gone(PODS, ns, "digits-worker-0")
            await c.until(JOBS, ns, "digits", lambda j: state(j) == "Suspended")
            await c.api.patch(JOBS, ns, "digits", {"spec": {"runPolicy": {"suspend": False}}})
            found = await c.until(JOBS, ns, "digits", lambda j: state(j) == "Rejected")
            assert "TrainingTemplate missing does not exist" in condition(found, "Accepted")["message"]
            change = {"templateRef": {"name": "other"}}
            await c.api.patch(JOBS, ns, "digits", {"spec": change})
            assert await image_of(c, ns, "digits-worker-0") == "train:3"


async def test_what_the_api_server_fills_in_says_nothing(control_plane: ControlPlane) -> None:
    """Nor does it require what a template has; null removes what the pod would have, an own section counts."""
    async with namespace_of(real_cluster(control_plane)) as (c, ns):
        prepared = template(
            f"{ns}-all",
            backend="mpi",
            runPolicy={"backoffLimit": 7, "cleanPodPolicy": "All"},
            mpi={"options": ["-v"]},
        )
        prepared["kind"] = OF_CLUSTER.kind
        prepared["spec"]["job"]["worker"]["template"]["spec"]["nodeSelector"] = {"disk": "ssd", "zone": "a"}
        await c.api.create(OF_CLUSTER, None, prepared)
        pod = {"containers": [{"env": [{"name": "A", "value": "1"}]}], "nodeSelector": {"disk": None}}
        over = {"mpi": {"requireInit": False}, "runPolicy": {"backoffLimit": 1}}
        made = naming(f"{ns}-all", "ClusterTrainingTemplate", **over)
        made["spec"]["worker"]["template"] = {"spec": pod}
        await c.api.create(JOBS, ns, made)
        async with running_operator(c.operator_connection, namespaces=(ns,)):
            pod = await c.until_exists(PODS, ns, "digits-worker-0")
            assert pod["spec"]["nodeSelector"] == {"zone": "a"}
            assert {"name": "A", "value": "1"} in pod["spec"]["containers"][0]["env"]
            assert (await c.api.get(JOBS, ns, "digits"))["status"]["template"]["kind"] == OF_CLUSTER.kind
        for wrong in (
            {"templateRef": {"name": "x", "kind": "Pod"}},
            {"templateRef": {}},
            {"worker": {"replicas": 2}},
        ):
            with pytest.raises(Unprocessable, match="templateRef"):
                await c.api.create(JOBS, ns, {**job("wrong"), "spec": wrong})
        with pytest.raises(Unprocessable, match=r"spec\.job\.backend"):
            await c.api.create(OF_NAMESPACE, ns, template("wrong", backend="nccl"))


async def test_the_cluster_is_asked_for_templates(open_cluster: OpenCluster, tmp_path: Path) -> None:
    """By `dtj templates`, by `dtj render`, and by the client, which also creates the job."""
    async with namespace_of(open_cluster()) as (c, ns):
        await c.api.create(OF_NAMESPACE, ns, template("small"))
        (tmp_path / "job.yaml").write_text(yaml.safe_dump(naming("small")))
        at = [f"--namespace={ns}", f"--kubeconfig={c.kubeconfig(tmp_path)}"]
        listed = await asyncio.to_thread(CliRunner().invoke, main, ["templates", *at])
        rows = [line.split(maxsplit=2) for line in listed.output.splitlines()]
        assert (rows[0], rows[-1]) == (["NAME", "KIND", "DESCRIPTION"], ["small", "TrainingTemplate", "of tests"])
        names = await asyncio.to_thread(CliRunner().invoke, main, ["templates", "-o", "name", *at])
        assert names.output.splitlines()[-1] == "small"  # after those of the cluster
        command = ["render", str(tmp_path / "job.yaml"), "--server", *at]
        rendered = await asyncio.to_thread(CliRunner().invoke, main, command)
        assert "digits-worker-1" in rendered.output
        async with AsyncClient(ClusterBackend(ns, kubeconfig=str(c.kubeconfig(tmp_path)))) as client:
            (tmp_path / "train.py").write_text("")
            named = {"kind": "TrainingTemplate", "name": "small"}
            run = await client.train(tmp_path / "train.py", template=named, workers=4, name="mine")
            assert (await run.job())["spec"]["templateRef"] == named
            with pytest.raises(Invalid, match=r"spec.templateRef.name: ClusterTrainingTempl"):
                await client.train(tmp_path / "train.py", template="small")
        async with running_operator(c.operator_connection, namespaces=(ns,)):
            pod = (await c.until_exists(PODS, ns, "mine-worker-3"))["spec"]["containers"][0]
            assert pod["image"] == "train:1"
            assert "/etc/ringtrain/script" in [mount["mountPath"] for mount in pod["volumeMounts"]]
