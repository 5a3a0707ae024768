"""Agent and launcher in pods whose image does not contain them."""

from typing import Any

import pytest
from support.jobs import job

from ringtrain_operator import contract
from ringtrain_operator.build import (
    AgentSource,
    BuildSettings,
    build_data_worker_pod,
    build_launcher_pod,
    build_service_account,
    build_worker_pod,
)
from ringtrain_operator.placement.kueue.workload import build_workload
from ringtrain_operator.spec.job import Job
from ringtrain_operator.spec.parse import parse_job

Json = dict[str, Any]
IMAGE = "registry.test/agent:7"
COPIED, MOUNTED = AgentSource(IMAGE), AgentSource(IMAGE, "ImageVolume")
PROGRAM = "/opt/ringtrain-agent/bin/ringtrain"


def parsed(**spec: Any) -> Job:
    """A job of that spec."""
    manifest = job(**spec)
    manifest["metadata"]["uid"] = "0a1b2c3d-0000"
    return parse_job(manifest)


def pods(made: Job, source: AgentSource | None) -> list[Json]:
    """Its launcher and a worker."""
    settings = BuildSettings(agent=source)
    return [build_launcher_pod(made, 1, "", settings), build_worker_pod(made, 1, 0, settings=settings)]


def volume(pod: Json) -> Json | None:
    """Return the volume that holds the agent."""
    return next((v for v in pod["spec"]["volumes"] if v["name"] == "ringtrain-agent"), None)


def program(pod: Json) -> str:
    """Return the program that the kubelet starts."""
    return str(pod["spec"]["containers"][0]["command"][0])


@pytest.mark.parametrize("source", [COPIED, MOUNTED], ids=["copied", "mounted"])
def test_the_agent_is_started_where_it_was_brought(source: AgentSource) -> None:
    """The pod mounts the agent read-only and starts it by its path; the user's command stays behind it."""
    for pod in pods(parsed(), source):
        assert program(pod) == PROGRAM
        mount = next(m for m in pod["spec"]["containers"][0]["volumeMounts"] if m["name"] == "ringtrain-agent")
        assert mount == {"name": "ringtrain-agent", "mountPath": contract.AGENT_DIR, "readOnly": True}
    assert pods(parsed(), source)[1]["spec"]["containers"][0]["command"][1:] == ["agent", "--", "train"]


@pytest.mark.parametrize(
    ("image", "agent", "expected"),
    [
        ("ghcr.io/ringtrain/worker:0.1.0", "ghcr.io/ringtrain/agent:0.1.0", "ringtrain"),
        ("ghcr.io/ringtrain/worker-torch:0.1.0@sha256:1a", "ghcr.io/ringtrain/agent:0.1.0", "ringtrain"),
        ("mirror:5000/rt/worker-jax:0.1.0", "mirror:5000/rt/agent:0.1.0@sha256:2b", "ringtrain"),
        ("ghcr.io/ringtrain/worker-tensorflow:0.1.0", "mirror:5000/rt/agent:0.1.0", "ringtrain"),
        ("ghcr.io/ringtrain/worker:0.1.1", "ghcr.io/ringtrain/agent:0.1.0", PROGRAM),
        ("ghcr.io/ringtrain/worker:0.1.0", "ghcr.io/ringtrain/agent@sha256:2b", PROGRAM),
        ("ghcr.io/ringtrain/worker@sha256:1a", "ghcr.io/ringtrain/agent:0.1.0", PROGRAM),
        ("ghcr.io/else/worker:0.1.0", "ghcr.io/ringtrain/agent:0.1.0", PROGRAM),
        ("ghcr.io/ringtrain/worker-mine:0.1.0", "ghcr.io/ringtrain/agent:0.1.0", PROGRAM),
    ],
)
def test_an_image_of_ours_and_of_its_version_has_it(image: str, agent: str, expected: str) -> None:
    """Launcher and workers run the image's own and mount nothing; a job that says Inject, or changes PATH, gets it."""
    source = AgentSource(agent)
    worker = job()["spec"]["worker"]
    container = worker["template"]["spec"]["containers"][0]
    container["image"] = image
    for pod in pods(parsed(worker=worker), source):
        assert program(pod) == expected
        assert (volume(pod) is None) == (expected == "ringtrain")
    assert program(pods(parsed(worker=worker, agent="Inject"), source)[1]) == PROGRAM
    container["env"] = [{"name": "PATH", "value": "/opt/mine/bin"}]
    assert program(pods(parsed(worker=worker), source)[1]) == PROGRAM


def test_pull_secrets_of_its_image() -> None:
    """In the job's account, and in a template that has secrets of its own: beside these admission adds none."""
    source = AgentSource(IMAGE, pull_secrets=("agents",))
    jobs = [parsed(agent=agent) for agent in ("Inject", "Image")]
    accounts = [build_service_account(made, BuildSettings(agent=source)) for made in jobs]
    assert [account.get("imagePullSecrets") for account in accounts] == [[{"name": "agents"}], None]
    assert [pod["spec"].get("imagePullSecrets") for pod in pods(parsed(), source)] == [None, None]
    worker = job()["spec"]["worker"]
    worker["template"]["spec"]["imagePullSecrets"] = [{"name": "own"}]
    both = [{"name": "own"}, {"name": "agents"}]
    assert [pod["spec"]["imagePullSecrets"] for pod in pods(parsed(worker=worker), source)] == [both, both]


def test_a_container_copies_it_before_all_others() -> None:
    """The copying container is restricted, has limits for quotas, and runs before the user's own."""
    made = job()
    made["spec"]["worker"]["template"]["spec"]["initContainers"] = [{"name": "mine", "image": "mine:1"}]
    worker = pods(parse_job({**made, "metadata": {"name": "digits", "uid": "0a1b2c3d"}}), COPIED)[1]
    first, second = worker["spec"]["initContainers"]
    assert volume(worker) == {"name": "ringtrain-agent", "emptyDir": {}}
    assert (first["image"], first["command"]) == (IMAGE, ["/bin/ringtrain", "copy", "/target"])
    assert first["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert first["securityContext"]["allowPrivilegeEscalation"] is False
    assert set(first["resources"]) == {"requests", "limits"}
    assert first["resources"]["requests"]["cpu"] == "100m"  # a hundredth of a core is nothing on a busy node
    assert second["name"] == "mine"


def test_the_installation_says_what_copying_may_take() -> None:
    """In each pod of a job."""
    own = {"requests": {"cpu": "1"}}
    for pod in pods(parsed(), AgentSource(IMAGE, resources=own)):
        assert pod["spec"]["initContainers"][0]["resources"] == own


def test_an_image_volume_needs_no_container() -> None:
    """The kubelet mounts the agent's image itself."""
    for pod in pods(parsed(), MOUNTED):
        reference = {"reference": IMAGE, "pullPolicy": "IfNotPresent"}
        assert volume(pod) == {"name": "ringtrain-agent", "image": reference}
        assert "initContainers" not in pod["spec"]


@pytest.mark.parametrize(
    ("agent", "source", "brought"),
    [
        pytest.param(None, COPIED, True, id="default"),
        pytest.param("Image", COPIED, False, id="the-job-wants-its-image's"),
        pytest.param(None, AgentSource(IMAGE, default="Image"), False, id="the-installation-wants-the-image's"),
        pytest.param("Inject", AgentSource(IMAGE, default="Image"), True, id="the-job-wants-it-brought"),
        pytest.param("Inject", None, False, id="one-machine"),
    ],
)
def test_the_job_decides_and_then_the_installation(
    agent: str | None, source: AgentSource | None, brought: bool
) -> None:
    """spec.agent counts before the operator's default; on one machine pods run what is there."""
    for pod in pods(parsed(**({"agent": agent} if agent else {})), source):
        assert (volume(pod) is not None) is brought
        assert program(pod) == (PROGRAM if brought else "ringtrain")


def test_only_a_job_that_says_inject_overrules_the_image() -> None:
    """Otherwise an image that says that it has ringtrain runs its own."""
    for agent, told in ((None, None), ("Inject", "Inject")):
        for pod in pods(parsed(**({"agent": agent} if agent else {})), COPIED):
            env = {v["name"]: v.get("value") for v in pod["spec"]["containers"][0]["env"]}
            assert env.get(contract.ENV_AGENT) == told


def test_a_queue_weighs_the_copying_container() -> None:
    """Kueue is told of it, as the pods that it admits have it."""
    made = parsed(scheduling={"queue": "mine"})
    workload = build_workload(made, "v1beta1", {}, BuildSettings(agent=COPIED))
    for pod_set in workload["spec"]["podSets"]:
        assert [c["name"] for c in pod_set["template"]["spec"]["initContainers"]] == ["ringtrain-agent"]


def test_data_workers_run_their_image() -> None:
    """They import the user's code into ringtrain, which therefore is the image's."""
    assert program(build_data_worker_pod(parsed(dataWorkers={"replicas": 1}), 0)) == "ringtrain"


@pytest.mark.parametrize("read_only", [True, False])
def test_a_read_only_root_has_a_tmp(read_only: bool) -> None:
    """A template that asks for a read-only root, and mounts nothing at /tmp, gets a /tmp that it can write to."""
    made = job()
    main = made["spec"]["worker"]["template"]["spec"]["containers"][0]
    main["securityContext"] = {"readOnlyRootFilesystem": read_only}
    worker = pods(parse_job({**made, "metadata": {"name": "digits", "uid": "0a1b2c3d"}}), None)[1]
    mounts = {m["mountPath"]: m["name"] for m in worker["spec"]["containers"][0]["volumeMounts"]}
    assert ("/tmp" in mounts) is read_only


def test_a_tmp_of_the_template_stays() -> None:
    """The user's volume is left where it is."""
    made = job()
    pod = made["spec"]["worker"]["template"]["spec"]
    pod["volumes"] = [{"name": "mine", "emptyDir": {}}]
    pod["containers"][0] |= {
        "securityContext": {"readOnlyRootFilesystem": True},
        "volumeMounts": [{"name": "mine", "mountPath": "/tmp/"}],
    }
    worker = pods(parse_job({**made, "metadata": {"name": "digits", "uid": "0a1b2c3d"}}), None)[1]
    assert "ringtrain-scratch" not in {v["name"] for v in worker["spec"]["volumes"]}
