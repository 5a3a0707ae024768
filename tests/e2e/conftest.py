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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.apiserver import why_unavailable

ROOT = Path(__file__).parents[2]
WAIT = "600s"


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
        """What kubectl prints. Raises AssertionError with its error."""
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

    def until(self, look: Callable[[], str], says: str, within_s: float = 300.0) -> str:
        """What `look` answers once that holds `says`. Raises AssertionError with the last answer."""
        deadline = time.monotonic() + within_s
        while says not in (output := look()):
            assert time.monotonic() < deadline, f"{says!r} was not output within {within_s:g} s: {output}"
            time.sleep(0.5)  # a cluster on the other side of kubectl: there is nothing here to wait on
        return output

    def dtj(self, *arguments: str) -> str:
        """What `dtj` prints."""
        command = [sys.executable, "-m", "ringtrain_client.cli", *arguments, "--namespace", self.namespace]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def kubectl() -> Iterator[Kubectl]:
    """A namespace of its own where the strictest Pod Security is enforced, gone afterwards."""
    kubectl = Kubectl(f"e2e-{uuid.uuid4().hex[:8]}")
    kubectl("create", "namespace", kubectl.namespace)
    kubectl("label", "namespace", kubectl.namespace, "pod-security.kubernetes.io/enforce=restricted")
    yield kubectl
    kubectl("delete", "namespace", kubectl.namespace, "--wait=false")


@pytest.fixture
def digits() -> Callable[..., dict[str, Any]]:
    """The sample job, with the worker image under test and changes to its spec."""
    import yaml

    def make(*arguments: str, sample: str = "digits-ring", **spec: Any) -> dict[str, Any]:
        text = (ROOT / "manifests" / "samples" / f"{sample}.yaml").read_text()
        job: dict[str, Any] = yaml.safe_load(text)
        container = job["spec"]["worker"]["template"]["spec"]["containers"][0]
        container["image"] = os.environ.get("RINGTRAIN_WORKER_IMAGE", container["image"])
        container["imagePullPolicy"] = "IfNotPresent"
        container["command"] += arguments
        job["spec"].update(spec)
        return job

    return make


def helm(*arguments: str) -> str:
    """What Helm prints."""
    command = [str(Path(sys.executable).with_name("helm")), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
