"""A cluster to test as a user has it: the one of KUBECONFIG, with the operator installed by its chart.

`make e2e` makes a kind cluster first if there is none, `make e2e-local` a cluster whose pods are processes. Images
are expected to be where the chart's values and RINGTRAIN_WORKER_IMAGE say.
"""

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.apiserver import why_unavailable

ROOT = Path(__file__).parents[2]
WAIT = "600s"
WORKER = os.environ.get("RINGTRAIN_WORKER_IMAGE", "ghcr.io/ringtrain/worker:0.1.0")
# An image of another's with a shell, an MPI, a server: run.sh tells what each has to have.
BARE = os.environ.get("E2E_BARE_IMAGE", "busybox:1.37")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test here needs a cluster."""
    missing = why_unavailable()
    reason = (
        "needs a cluster: run `make e2e-local`, which makes one of processes"
        f"{f' ({missing})' if missing else ''}, or `make e2e`, for the cluster of KUBECONFIG or one made by kind"
    )
    for item in items:
        if Path(item.path).is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.e2e)
            if not os.environ.get("RINGTRAIN_E2E"):
                item.add_marker(pytest.mark.skip(reason=reason))


@dataclass(frozen=True)
class Kubectl:
    """kubectl in one namespace."""

    namespace: str

    def __call__(self, *arguments: str, check: bool = True, stdin: str = "") -> str:
        """Run kubectl and return its output. Raises AssertionError with its error."""
        command = ["kubectl", "--namespace", self.namespace, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, input=stdin, check=False)
        assert not check or done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    def apply(self, obj: dict[str, Any]) -> None:
        """`kubectl apply` of one object."""
        self("apply", "--filename=-", stdin=json.dumps(obj))

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """One object."""
        found: dict[str, Any] = json.loads(self("get", kind, name, "--output=json"))
        return found

    def wait(self, kind: str, name: str, what: str) -> None:
        """Return when `what` (a condition, a jsonpath, delete) holds."""
        self("wait", f"{kind}/{name}", f"--for={what}", f"--timeout={WAIT}")

    def ended(self, name: str) -> dict[str, Any]:
        """Status of a job once it has ended, well or not."""
        self.wait("dtj", name, "jsonpath={.status.completionTime}")
        status: dict[str, Any] = self.get("dtj", name)["status"]
        return status

    def until(self, look: Callable[[], str], says: str, within_s: float = 300.0) -> str:
        """Return the output of `look` once it contains `says`. Raises AssertionError with the last output."""
        deadline = time.monotonic() + within_s
        while says not in (output := look()):
            assert time.monotonic() < deadline, f"{says!r} was not output within {within_s:g} s: {output}"
            time.sleep(0.5)  # a cluster on the other side of kubectl: there is nothing here to wait on
        return output

    def dtj(self, *arguments: str) -> str:
        """Run `dtj` and return its output."""
        command = [sys.executable, "-m", "ringtrain_client.cli", *arguments, "--namespace", self.namespace]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def kubectl() -> Iterator[Kubectl]:
    """A namespace of its own where the strictest Pod Security is enforced, gone afterwards."""
    with namespace("restricted") as made:
        yield made


@pytest.fixture
def privileged() -> Iterator[Kubectl]:
    """A namespace of its own without Pod Security: images run as their user, pods use their node's network."""
    with namespace("privileged") as made:
        yield made


@contextmanager
def namespace(pod_security: str) -> Iterator[Kubectl]:
    """Make a namespace, and delete it with its jobs. Their pods are gone then, and with them the load on the nodes."""
    kubectl = Kubectl(f"e2e-{uuid.uuid4().hex[:8]}")
    kubectl("create", "namespace", kubectl.namespace)
    kubectl("label", "namespace", kubectl.namespace, f"pod-security.kubernetes.io/enforce={pod_security}")
    try:
        yield kubectl
    finally:
        print(kubectl("get", "dtj,pods", "--output=wide", check=False))
        print(kubectl("get", "events", "--sort-by=.lastTimestamp", check=False))
        print(kubectl("get", "dtj", "--output=jsonpath={.items[*].status}", check=False))
        kubectl("delete", "dtj", "--all", "--wait=false")
        kubectl("delete", "pods", "--all", "--grace-period=1")
        kubectl("delete", "namespace", kubectl.namespace, "--wait=false")


@pytest.fixture
def containers() -> None:
    """Skip where pods are no containers."""
    if not nodes("{.status.nodeInfo.containerRuntimeVersion}")[0]:
        pytest.skip("needs nodes that run containers; the pods of this cluster are processes")


def nodes(jsonpath: str) -> list[str]:
    """One value of each node that pods may be placed on, first of all their names: "{.metadata.name}"."""
    listed = json.loads(Kubectl("default")("get", "nodes", "--output=json"))["items"]
    names = [node["metadata"]["name"] for node in listed if not node["spec"].get("taints")]
    return [Kubectl("default")("get", "node", name, f"--output=jsonpath={jsonpath}") for name in names]


def job(name: str, *command: str, image: str = WORKER, workers: int = 2, **spec: Any) -> dict[str, Any]:
    """Job whose ranks run `command` in `image`. `container` and `pod`: fields of its worker; `spec`: all others."""
    container = {"name": "train", "image": image, "imagePullPolicy": "IfNotPresent", "command": list(command)}
    pod = {"containers": [container | spec.pop("container", {})]} | spec.pop("pod", {})
    worker = {"replicas": workers, "template": {"spec": pod}} | spec.pop("worker", {})
    return {
        "apiVersion": "ringtrain.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": name},
        "spec": {"worker": worker, **spec},
    }


@pytest.fixture
def digits() -> Callable[..., dict[str, Any]]:
    """The sample job, with the worker image under test and changes to its spec."""
    import yaml

    def make(*arguments: str, sample: str = "digits-ring", **spec: Any) -> dict[str, Any]:
        text = (ROOT / "manifests" / "samples" / f"{sample}.yaml").read_text()
        job: dict[str, Any] = yaml.safe_load(text)
        container = job["spec"]["worker"]["template"]["spec"]["containers"][0]
        container["image"] = WORKER
        container["imagePullPolicy"] = "IfNotPresent"
        container["command"] += arguments
        job["spec"].update(spec)
        return job

    return make


def helm(*arguments: str) -> str:
    """Run Helm and return its output."""
    command = [str(Path(sys.executable).with_name("helm")), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
