"""Pods of a job that the real API server refuses, and those that it admits under the strictest Pod Security."""

import itertools
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.apiserver import ControlPlane
from support.cluster import namespace_of, real_cluster
from support.jobs import job
from support.kubelet.pod import ROOT_IMAGE
from support.objects import NAMESPACES, pod
from support.scenario import Scenario, open_scenario

from ringtrain_client.cli.render import rendered
from ringtrain_client.local.documents import read_documents
from ringtrain_operator.build import (
    SECURITY_FIELDS,
    AgentSource,
    BuildSettings,
    build_data_worker_pod,
    build_evaluator_pod,
    build_launcher_pod,
    build_worker_pod,
    secured_pod,
)
from ringtrain_operator.build.log_reader import build_log_reader_pod
from ringtrain_operator.build.settings import AgentVolume
from ringtrain_operator.cluster.api.errors import AlreadyExists, ServerError
from ringtrain_operator.cluster.api.resources import JOBS, PODS, SERVICE_ACCOUNTS, ApiResource
from ringtrain_operator.contract import KIND
from ringtrain_operator.spec.parse import parse_job
from ringtrain_operator.spec.reserved import VOLUME_AGENT
from ringtrain_operator.spec.training_template import is_template, named_template, read_template, resolved_job_spec

pytestmark = pytest.mark.apiserver
QUOTAS = ApiResource("v1", "ResourceQuota", "resourcequotas")
WEBHOOKS = ApiResource(
    "admissionregistration.k8s.io/v1",
    "ValidatingWebhookConfiguration",
    "validatingwebhookconfigurations",
    namespaced=False,
)
SAMPLES = Path(__file__).parents[3] / "manifests" / "samples"
RESTRICTED = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}


def worker(**pod: Any) -> dict[str, Any]:
    """The worker part of a spec, with changes to its pod's spec."""
    part: dict[str, Any] = job()["spec"]["worker"]
    part["template"]["spec"].update(pod)
    return part


def security_of(pod: dict[str, Any]) -> set[str]:
    """The fields of its containers' security contexts."""
    return {field for container in pod["spec"]["containers"] for field in container.get("securityContext") or {}}


def rooted() -> dict[str, Any]:
    """A worker whose image has root as its user."""
    part = worker()
    part["template"]["spec"]["containers"][0]["image"] = ROOT_IMAGE
    return part


async def test_the_strictest_namespace_takes_our_pods(control_plane: ControlPlane, tmp_path: Path) -> None:
    """Pod Security `restricted` is enforced, and a job that says nothing about security runs."""
    async with open_scenario(partial(real_cluster, control_plane), tmp_path) as s:
        await s.cluster.api.patch(NAMESPACES, None, s.namespace, RESTRICTED)
        await s.submit()
        await s.until_running()
        s.succeed()
        await s.until_state("Succeeded")


async def test_an_image_runs_as_the_user_that_it_names(control_plane: ControlPlane, tmp_path: Path) -> None:
    """Root's, where nothing is enforced: the operator says nothing of the user, as mpi-operator and Trainer."""
    async with open_scenario(partial(real_cluster, control_plane), tmp_path) as s:
        await s.submit(worker=rooted())
        await s.until_running()
        pods = await s.pods()
        assert not any("runAsNonRoot" in pod["spec"]["securityContext"] for pod in pods)
        assert not [field for pod in pods for field in security_of(pod) & set(SECURITY_FIELDS)]


async def test_an_image_of_root_does_not_start_where_root_is_refused(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    """Its pods are made so that Pod Security admits them, and the condition names the field to set."""
    async with open_scenario(partial(real_cluster, control_plane), tmp_path) as s:
        await s.cluster.api.patch(NAMESPACES, None, s.namespace, RESTRICTED)
        await s.submit(worker=rooted())
        await s.until_condition("Running", "False", "template.spec.securityContext.runAsUser")
        pods = await s.pods()
        assert all(pod["spec"]["securityContext"]["runAsNonRoot"] for pod in pods)
        assert all(security_of(pod) >= {"capabilities", "allowPrivilegeEscalation"} for pod in pods)


async def test_a_template_of_root_is_refused_by_its_field(control_plane: ControlPlane, tmp_path: Path) -> None:
    """The operator does not change a template to pass admission: the pod is refused with the field's name."""
    async with open_scenario(partial(real_cluster, control_plane), tmp_path) as s:
        await s.cluster.api.patch(NAMESPACES, None, s.namespace, RESTRICTED)
        await s.submit(worker=worker(securityContext={"runAsUser": 0}))
        running = await s.until_condition("Running", "False", "runAsUser=0")
        assert running["reason"] == "CreationRefused"


@pytest.mark.parametrize("volume", ["ImageVolume", "InitContainer"])
async def test_the_strictest_namespace_takes_the_agent(control_plane: ControlPlane, volume: AgentVolume) -> None:
    """However it is brought, in pods of every role; and the pod that reads logs with it."""
    manifest = job(
        agent="Inject",
        dataWorkers={"replicas": 1},
        evaluator={},
        logs={"persistentVolumeClaim": {"claimName": "logs"}},
    )
    settings = BuildSettings(agent=AgentSource("agent:1", volume))
    async with namespace_of(real_cluster(control_plane)) as (c, namespace):
        await c.api.patch(NAMESPACES, None, namespace, RESTRICTED)
        await c.api.create(SERVICE_ACCOUNTS, namespace, {"metadata": {"name": "digits"}})
        parsed = parse_job(await c.api.create(JOBS, namespace, manifest))
        pods = [
            build_launcher_pod(parsed, 1, settings=settings),
            build_worker_pod(parsed, 1, 0, settings=settings),
            build_data_worker_pod(parsed, 0),
            build_evaluator_pod(parsed, 2),
            build_log_reader_pod(parsed, 1, "x", 60, "agent:1"),
        ]
        stored = [await c.api.create(PODS, namespace, secured_pod(pod, SECURITY_FIELDS)) for pod in pods]
    brought = [found for pod in stored for found in pod["spec"]["volumes"] if found["name"] == VOLUME_AGENT]
    kind = "image" if volume == "ImageVolume" else "emptyDir"
    assert [kind in found for found in brought] == [True, True]


async def test_what_pod_security_refuses_is_said(control_plane: ControlPlane, tmp_path: Path) -> None:
    """A template that asks for the host's network there: the condition has the admission's own words."""
    async with open_scenario(partial(real_cluster, control_plane), tmp_path) as s:
        await s.cluster.api.patch(NAMESPACES, None, s.namespace, RESTRICTED)
        await s.submit(worker=worker(hostNetwork=True))
        running = await s.until_condition("Running", "False", "violates PodSecurity")
        assert (running["reason"], "hostNetwork=true" in running["message"]) == ("CreationRefused", True)


@pytest.mark.parametrize("elastic", [False, True])
async def test_a_pod_that_the_server_calls_invalid_ends_the_job(
    control_plane: ControlPlane, tmp_path: Path, elastic: bool
) -> None:
    """Its validation, not an admission plugin, refuses privileged containers here: no later attempt could succeed."""
    part = worker()
    part["template"]["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    spec = {"elastic": {"minReplicas": 1, "maxReplicas": 2}} if elastic else {}
    async with open_scenario(partial(real_cluster, control_plane), tmp_path) as s:
        await s.submit(worker=part, **spec)
        failed = await s.until_condition("Failed", "True", "privileged: Forbidden: disallowed by cluster policy")
        assert failed["reason"] == "CannotStart"
        assert "(422 Invalid)" in failed["message"]


async def test_pods_pull_as_those_of_the_namespace_do(control_plane: ControlPlane, tmp_path: Path) -> None:
    """Secrets of the namespace's default account are in the job's, and admission gives them to its pods."""
    secrets = [{"name": "registry"}]
    async with open_scenario(partial(real_cluster, control_plane), tmp_path) as s:
        await s.cluster.api.patch(SERVICE_ACCOUNTS, s.namespace, "default", {"imagePullSecrets": secrets})
        await s.submit()
        await s.until_running()
        account = await s.cluster.api.get(SERVICE_ACCOUNTS, s.namespace, s.name)
        assert account["imagePullSecrets"] == secrets
        assert [pod["spec"]["imagePullSecrets"] for pod in await s.pods()] == [secrets] * 3


async def test_a_webhook_that_cannot_be_asked_is_said(control_plane: ControlPlane, tmp_path: Path) -> None:
    """The API server calls it a failure of its own, which may last; with the webhook gone the job runs."""
    async with open_scenario(partial(real_cluster, control_plane), tmp_path) as s:
        hook = {
            "name": "pods.example.com",
            "clientConfig": {"url": "https://127.0.0.1:9/"},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": s.namespace}},
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
        }
        named = {"metadata": {"name": s.namespace}, "webhooks": [hook]}
        await s.cluster.api.create(WEBHOOKS, None, named)
        try:
            await _until_pods_are_refused(s)
            await s.submit()
            running = await s.until_condition("Running", "False", "failed calling webhook")
            assert running["reason"] == "CreationRefused"
            assert "pods.example.com" in running["message"]
        finally:
            await s.cluster.api.delete(WEBHOOKS, None, s.namespace)
        await s.until_running()


async def test_what_a_quota_admits_of_a_gang_is_given_back(control_plane: ControlPlane, tmp_path: Path) -> None:
    """Two of three pods are admitted: they hold no devices for a gang that never begins. With room for all the job
    runs, and nothing is counted."""
    async with open_scenario(partial(real_cluster, control_plane), tmp_path) as s:
        await few_pods(s, 2)
        await s.submit()
        await s.until_pods(2)
        waits = await s.until_condition("Running", "False", "the job has released its resources")
        assert (waits["reason"], "exceeded quota: few" in waits["message"]) == ("QuotaExceeded", True)
        await s.until_pods(0)
        assert (await s.job())["status"]["state"] == "Queued"
        await few_pods(s, 3)
        await s.until_running(attempt=2, after_s=60)
        status = (await s.job())["status"]
        assert (status["restarts"], status["disruptions"]) == (0, 0)


async def test_two_gangs_that_share_a_quota_run_one_after_the_other(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    """Each needs three of four pods, and gets two at first."""
    async with open_scenario(partial(real_cluster, control_plane), tmp_path) as s:
        await few_pods(s, 4)
        jobs = [replace(s, name="one"), replace(s, name="two")]
        for one in jobs:
            await one.submit()
        runs: list[Scenario] = []
        while not runs:
            runs = [one for one in jobs if all_run(await one.job())]
            await s.cluster.pause()
        runs[0].succeed(attempt=(await runs[0].job())["status"]["attempt"])
        await runs[0].until_state("Succeeded")
        other = jobs[0] if runs[0] is jobs[1] else jobs[1]
        other.skip(60)
        await other.until(all_run)


async def few_pods(s: Scenario, pods: int) -> None:
    """Return when no more pods than these are admitted to the namespace."""
    api, spec = s.cluster.api, {"hard": {"pods": str(pods)}}
    try:
        await api.create(QUOTAS, s.namespace, {"metadata": {"name": "few"}, "spec": spec})
    except AlreadyExists:
        await api.patch(QUOTAS, s.namespace, "few", {"spec": spec})
    hard = spec["hard"]
    await s.cluster.until(QUOTAS, s.namespace, "few", lambda q: q and q.get("status", {}).get("hard") == hard)


def all_run(job: dict[str, Any]) -> bool:
    """Whether all three pods of the job's present attempt run."""
    pods = (job.get("status") or {}).get("replicaStatuses") or {}
    return [pods.get(role, {}).get("ready") for role in ("launcher", "worker")] == [1, 2]


async def _until_pods_are_refused(s: Scenario) -> None:
    """The API server learns of a webhook a moment after it was made."""
    for number in itertools.count():
        try:
            await s.cluster.api.create(PODS, s.namespace, pod(f"probe-{number}"))
        except ServerError:
            return
        await s.cluster.pause()


async def test_the_strictest_namespace_takes_every_sample(control_plane: ControlPlane) -> None:
    """All pods of an attempt, as they are made: what the API server has against one names its field."""
    documents = [document for path in sorted(SAMPLES.glob("*.yaml")) for document in read_documents(path)]
    jobs = [document for document in documents if document["kind"] == KIND]
    templates = {found.name: found for found in map(read_template, filter(is_template, documents))}
    async with real_cluster(control_plane) as c:
        for manifest in jobs:
            namespace = await c.new_namespace()
            await c.api.patch(NAMESPACES, None, namespace, RESTRICTED)
            await c.api.create(SERVICE_ACCOUNTS, namespace, {"metadata": {"name": manifest["metadata"]["name"]}})
            made = await c.api.create(JOBS, namespace, manifest)
            named = named_template(made)
            parsed = parse_job(resolved_job_spec(made, templates[named[1]] if named else None))
            for pod in (obj for obj in rendered(parsed) if obj["kind"] == "Pod"):
                await c.api.create(PODS, namespace, secured_pod(pod, SECURITY_FIELDS))
    assert len(jobs) > 15
