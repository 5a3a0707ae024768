"""Pods of data workers and of an evaluator: what they have of the worker's template, and what not."""

import copy
import json
from typing import Any

import pytest
from support.jobs import job

from ringtrain_operator import contract
from ringtrain_operator.build import (
    SECURITY_FIELDS,
    build_data_worker_pod,
    build_evaluator_pod,
    build_network_policy,
    secured_pod,
)
from ringtrain_operator.build.settings import BuildSettings
from ringtrain_operator.errors import Invalid
from ringtrain_operator.spec.job import Job
from ringtrain_operator.spec.parse import parse_job

Json = dict[str, Any]
TRAINER: Json = {
    "name": "train",
    "image": "train:1",
    "command": ["python"],
    "args": ["train.py"],
    "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, {"name": "DATA", "value": "/data"}],
    "resources": {"limits": {"cpu": "4", "nvidia.com/gpu": 2}, "claims": [{"name": "gpu"}]},
    "livenessProbe": {"exec": {"command": ["true"]}},
    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
}
POD: Json = {
    "containers": [TRAINER],
    "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    "resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}],
    "imagePullSecrets": [{"name": "registry"}],
    "nodeSelector": {"disk": "ssd"},
}
CLAIM = {"persistentVolumeClaim": {"claimName": "checkpoints"}}


def parsed(**spec: Any) -> Job:
    """A job whose workers have devices, a volume and a probe."""
    manifest = job(slotsPerWorker=2, **spec)
    manifest["metadata"]["uid"] = "0a1b2c3d-0000"
    manifest["spec"]["worker"]["template"] = {"spec": copy.deepcopy(POD)}
    return parse_job(manifest, templates=False)


def main(pod: Json) -> Json:
    """The pod's first container."""
    return pod["spec"]["containers"][0]


def env(pod: Json) -> dict[str, Any]:
    """Its plain environment; of two of a name the later counts, as for a kubelet."""
    return {variable["name"]: variable.get("value") for variable in main(pod)["env"]}


@pytest.mark.parametrize("host_network", [False, True])
def test_a_data_workers_port(host_network: bool) -> None:
    """In its node's network it takes one that is free, and reserves none."""
    template = {"spec": {"hostNetwork": host_network, "containers": [{"name": "data"}]}}
    pod = build_data_worker_pod(parsed(dataWorkers={"replicas": 1, "template": template}), 0)
    assert env(pod)["RINGTRAIN_DATA_PORT"] == ("0" if host_network else "7370")
    assert bool(main(pod).get("ports")) is not host_network


def test_a_data_worker_is_a_worker_without_devices() -> None:
    """It finds the worker's data under the same paths; whatever asks after a rank is gone."""
    pod = build_data_worker_pod(parsed(dataWorkers={"slotsPerWorker": 3}), 1, "digits-secret")
    container = main(pod)
    assert container["command"] == ["ringtrain", "data-worker"]
    assert container["resources"] == {"limits": {"cpu": "4"}}
    assert {"args", "livenessProbe"}.isdisjoint(container)
    assert pod["spec"].get("resourceClaims") is None
    assert pod["spec"]["nodeSelector"] == {"disk": "ssd"}
    assert "/data" in [mount["mountPath"] for mount in container["volumeMounts"]]
    assert env(pod)["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert env(pod)["DATA"] == "/data"


def test_a_data_worker_is_told_nothing_of_an_attempt() -> None:
    """It outlives them. It knows the launcher by the name that is the same in all, and has a role of its own."""
    pod = build_data_worker_pod(parsed(dataWorkers={"slotsPerWorker": 3}), 1, "digits-secret")
    assert pod["metadata"]["name"] == "digits-data-1"
    labels = pod["metadata"]["labels"]
    assert (labels[contract.LABEL_ROLE], labels[contract.LABEL_DATA_INDEX]) == ("data", "1")
    assert contract.LABEL_ATTEMPT not in labels
    variables = env(pod)
    assert contract.ENV_ATTEMPT not in variables
    assert variables[contract.ENV_LAUNCHER_ADDRESS] == "digits-launcher.digits:7350"
    assert (variables[contract.ENV_DATA_INDEX], variables[contract.ENV_DATA_SLOTS]) == ("1", "3")
    secret = next(v["secret"] for v in pod["spec"]["volumes"] if v["name"] == "ringtrain-secret")
    assert secret["secretName"] == "digits-secret"
    assert {"key": "data.key", "path": "tls.key"} in secret["items"]


def test_an_own_template_takes_from_the_worker_what_it_leaves_out() -> None:
    """Image and pull secrets, but not where the worker runs and what it mounts."""
    template = {"spec": {"containers": [{"resources": {"requests": {"cpu": "8"}}}], "tolerations": [{"key": "cpu"}]}}
    pod = build_data_worker_pod(parsed(dataWorkers={"template": template}), 0)
    assert (main(pod)["name"], main(pod)["image"]) == ("data", "train:1")
    assert main(pod)["resources"] == {"requests": {"cpu": "8"}}
    assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    assert "nodeSelector" not in pod["spec"]


def test_an_evaluator_is_a_worker_without_devices_and_without_credentials() -> None:
    """It runs the worker's command outside of the world, and mounts the checkpoints."""
    pod = build_evaluator_pod(parsed(evaluator={}, checkpoint=CLAIM), 2)
    container = main(pod)
    assert (container["command"], container["args"]) == (["python"], ["train.py"])
    assert container["resources"] == {"limits": {"cpu": "4"}}
    assert {"ringtrain-secret"}.isdisjoint(volume["name"] for volume in pod["spec"]["volumes"])
    assert "/checkpoints" in [mount["mountPath"] for mount in container["volumeMounts"]]
    assert env(pod)["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert json.loads(env(pod)["TF_CONFIG"])["task"] == {"type": "evaluator", "index": 0}


def test_an_evaluator_may_have_devices_and_a_program_of_its_own() -> None:
    """Then nothing hides them from it."""
    template = {"spec": {"containers": [{"command": ["python", "evaluate.py"]}]}}
    pod = build_evaluator_pod(parsed(evaluator={"devices": {"nvidia.com/gpu": 1}, "template": template}), 2)
    assert (main(pod)["image"], main(pod)["command"]) == ("train:1", ["python", "evaluate.py"])
    assert main(pod)["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    assert "NVIDIA_VISIBLE_DEVICES" not in env(pod)


def test_an_evaluator_without_any_program_is_refused() -> None:
    """The workers of an mpi job may have none, where the launcher names it."""
    manifest = job(backend="mpi", evaluator={})
    manifest["spec"]["worker"]["template"]["spec"]["containers"][0].pop("command")
    manifest["spec"]["launcher"] = {"template": {"spec": {"containers": [{"command": ["mpirun", "train"]}]}}}
    with pytest.raises(Invalid, match=r"spec.evaluator.template.spec.containers\[0\].command: is missing"):
        parse_job(manifest)


@pytest.mark.parametrize("build", ["data", "evaluator"])
def test_both_meet_the_restricted_standard_where_it_is_asked_for(build: str) -> None:
    """As all pods of a job."""
    with_both = parsed(dataWorkers={}, evaluator={})
    pod = build_data_worker_pod(with_both, 0) if build == "data" else build_evaluator_pod(with_both, 2)
    assert "securityContext" not in main(pod)
    restricted = main(secured_pod(pod, SECURITY_FIELDS))["securityContext"]
    assert restricted == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["spec"]["restartPolicy"] == "Never"


def test_ports_of_their_templates_are_let_in_as_others() -> None:
    """The network policy admits any peer to template ports if the installation allows it."""
    template = {"spec": {"containers": [{"ports": [{"containerPort": 6006}]}]}}
    settings = BuildSettings(template_ports_from=[{"podSelector": {}}])
    policy = build_network_policy(parsed(evaluator={"template": template}), settings)
    assert policy["spec"]["ingress"][-1]["ports"] == [{"port": 6006, "protocol": "TCP"}]
