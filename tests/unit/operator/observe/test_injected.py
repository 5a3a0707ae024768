"""Admission webhooks change the pods that the operator makes: a mesh's container stands in front of ours."""

from typing import Any

import pytest
from support.jobs import job

from ringtrain_operator import contract
from ringtrain_operator.build import (
    BuildSettings,
    build_data_worker_pod,
    build_evaluator_pod,
    build_launcher_pod,
    build_worker_pod,
)
from ringtrain_operator.cluster.observe import ClusterReading
from ringtrain_operator.cluster.reconcile import launcher_endpoint
from ringtrain_operator.observe.model import Observed
from ringtrain_operator.observe.pods import main_container, status_token, view_pod
from ringtrain_operator.spec.parse import parse_job

Json = dict[str, Any]
ENV = [{"name": "PROXY", "value": "1"}]
ROLES = [contract.ROLE_LAUNCHER, contract.ROLE_WORKER, contract.ROLE_DATA, contract.ROLE_EVALUATOR]


def injected(role: str) -> Json:
    """A role's pod as a webhook hands it on."""
    manifest = job(dataWorkers={"replicas": 1}, evaluator={})
    manifest["metadata"]["uid"] = "0a1b2c3d-0000"
    made = parse_job(manifest)
    pod = {
        contract.ROLE_LAUNCHER: lambda: build_launcher_pod(made, 1, "", BuildSettings(token=lambda: "secret")),
        contract.ROLE_WORKER: lambda: build_worker_pod(made, 1, 0),
        contract.ROLE_DATA: lambda: build_data_worker_pod(made, 0),
        contract.ROLE_EVALUATOR: lambda: build_evaluator_pod(made, 2),
    }[role]()
    pod["spec"]["containers"].insert(0, {"name": "proxy", "image": "mesh", "env": ENV})
    return pod


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("code", [0, 3])
def test_the_end_is_that_of_our_container(role: str, code: int) -> None:
    """Success and failure are those of the container that the operator made, while the proxy runs on."""
    pod = injected(role)
    ours = pod["spec"]["containers"][1]["name"]
    assert main_container(pod)["name"] == ours
    ended = {"exitCode": code, "message": "m"}
    statuses = [
        {"name": "proxy", "ready": True, "state": {"running": {}}},
        {"name": ours, "state": {"terminated": ended}},
    ]
    seen = view_pod({**pod, "status": {"phase": "Running", "containerStatuses": statuses}})
    assert seen.finished
    assert (seen.end.code, seen.end.message, seen.main.ready) == (code, "m", False)


def test_the_launcher_is_asked_where_and_as_it_says() -> None:
    """Port and token of /status are variables of our container."""
    pod = injected(contract.ROLE_LAUNCHER)
    port = next(e for e in main_container(pod)["env"] if e["name"] == contract.ENV_STATUS_PORT)
    port["value"] = "7999"
    pod["status"] = {"phase": "Running", "podIP": "10.0.0.7"}
    assert status_token(pod) == "secret"
    endpoint = launcher_endpoint(ClusterReading(Observed(), (pod,)))
    assert ":7999/" in endpoint.url


def test_a_pod_without_our_variables_is_read_by_position() -> None:
    """Nothing else tells."""
    assert main_container({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}})["name"] == "a"
    assert main_container({}) == {}
