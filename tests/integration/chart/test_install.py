"""Helm on a real API server: install, upgrade, uninstall, and what becomes of the CRD and the jobs."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.apiserver import ControlPlane, why_unavailable
from support.deadlines import patient
from support.jobs import job
from support.rendering import CHART, HELM

ROOT = CHART.parents[1]
CRD = "distributedtrainingjobs.ringtrain.dev"
Json = dict[str, Any]
pytestmark = [
    pytest.mark.apiserver,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl"),
]


class Admin:
    """helm and kubectl as the cluster's admin."""

    def __init__(self, plane: ControlPlane) -> None:
        self._config = f"--kubeconfig={plane.kubeconfig()}"

    def helm(self, *arguments: str, check: bool = True) -> str:
        """Run Helm and return its output with errors. Raises AssertionError if `check` and it fails."""
        return self._run([str(HELM), self._config, *arguments], check)

    def kubectl(self, *arguments: str, stdin: str = "", check: bool = True) -> str:
        """Run kubectl and return its output with errors. Raises AssertionError if `check` and it fails."""
        return self._run(["kubectl", self._config, *arguments], check, stdin)

    def get(self, *arguments: str) -> Json:
        """One object, or a list of them."""
        found: Json = json.loads(self.kubectl("get", *arguments, "--output=json"))
        return found

    def _run(self, command: list[str], check: bool, stdin: str = "") -> str:
        done = subprocess.run(
            command,
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=patient(120),
            check=False,
        )
        assert not check or done.returncode == 0, f"{command}: {done.stdout}"
        return done.stdout


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Admin]:
    """A control plane without our CRD, with the rights of manifests/operator.yaml as kubectl applies them."""
    if reason := why_unavailable():
        pytest.skip(reason)
    plane = ControlPlane.start(tmp_path_factory.mktemp("control-plane"))
    yield Admin(plane)
    plane.stop()


@pytest.fixture
def older_chart(tmp_path: Path) -> Path:
    """The chart of a version whose CRD had no progressDeadlineSeconds."""
    chart = tmp_path / "older"
    shutil.copytree(CHART, chart)
    template = chart / "templates" / "crd.yaml"
    crd = yaml.safe_load((ROOT / "manifests" / "crd.yaml").read_text())
    del policy_of(crd)["progressDeadlineSeconds"]
    crd["metadata"]["annotations"] = {"helm.sh/resource-policy": "keep"}
    template.write_text(yaml.safe_dump(crd))
    return chart


def policy_of(crd: Json) -> Json:
    """The properties of a CRD's runPolicy."""
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    found: Json = schema["properties"]["spec"]["properties"]["runPolicy"]["properties"]
    return found


def test_a_release_from_its_first_day_to_its_last(admin: Admin, older_chart: Path) -> None:
    """An upgrade brings the new CRD and keeps the jobs; uninstalling keeps both; the next install has them."""
    where = ("other", "--namespace=other")
    admin.helm("install", *where, str(older_chart), "--create-namespace")
    admin.kubectl("wait", f"crd/{CRD}", "--for=condition=Established", "--timeout=60s")
    admin.kubectl("apply", "--filename=-", stdin=json.dumps(job()))
    assert "progressDeadlineSeconds" not in policy_of(admin.get("crd", CRD))

    admin.helm("upgrade", *where, str(CHART), "--set=replicas=2", "--set=templates.enabled=true")
    templates = admin.get("clustertrainingtemplates")["items"]
    assert {template["metadata"]["name"] for template in templates} == {"torch", "tensorflow", "jax", "mpi"}
    assert "progressDeadlineSeconds" in policy_of(admin.get("crd", CRD))
    assert admin.get("dtj", "digits")["metadata"]["name"] == "digits"
    (budget,) = admin.get("pdb", "--namespace=other")["items"]
    selector = budget["spec"]["selector"]["matchLabels"]
    deployment = admin.get("deployment", "other-ringtrain-operator", "--namespace=other")
    assert selector.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    assert deployment["spec"]["replicas"] == 2

    admin.helm("uninstall", *where)
    assert admin.get("deployments", "--namespace=other")["items"] == []
    assert admin.get("dtj", "digits")["metadata"]["name"] == "digits"
    assert admin.get("clusterrole", "other-ringtrain-operator-edit")["rules"]

    admin.helm("install", *where, str(CHART), "--set=namespaces={default}")
    roles = admin.get("roles", "--namespace=default")["items"]
    assert [role["metadata"]["name"] for role in roles] == ["other-ringtrain-operator"]
    admin.helm("uninstall", *where)
    admin.kubectl("delete", f"crd/{CRD}")


def test_what_kubectl_applied_is_taken_over_when_helm_is_told_to(admin: Admin) -> None:
    """After `kubectl apply -f manifests/` Helm says whose the objects are; with --take-ownership it goes on."""
    admin.kubectl("apply", f"--filename={ROOT / 'manifests'}")
    install = ("install", "ringtrain", str(CHART), "--namespace=ringtrain-system")
    assert "cannot be imported into the current release" in admin.helm(*install, check=False)
    admin.helm(*install, "--take-ownership")
    labels = admin.get("crd", CRD)["metadata"]["labels"]
    assert labels["app.kubernetes.io/managed-by"] == "Helm"
    admin.helm("uninstall", "ringtrain", "--namespace=ringtrain-system")


def test_the_operators_pod_is_admitted_where_restricted_is_enforced(admin: Admin) -> None:
    """The namespace of manifests/operator.yaml enforces it; the API server takes the Deployment's pod there."""
    admin.kubectl("apply", f"--filename={ROOT / 'manifests'}")
    labels = admin.get("namespace", "ringtrain-system")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    template = admin.get("deployment", "ringtrain-operator", "--namespace=ringtrain-system")["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": template["spec"]}
    created = admin.kubectl(
        "create", "--dry-run=server", "--namespace=ringtrain-system", "--filename=-", stdin=json.dumps(pod)
    )
    assert "created" in created
    assert "Warning" not in created


@pytest.mark.parametrize(
    ("release", "namespace"),
    [("x" * 53, "long"), ("numbers", "2026"), ("words", "null")],
    ids=["long-release", "number", "word-of-yaml"],
)
def test_any_name_that_kubernetes_takes_can_be_installed(admin: Admin, release: str, namespace: str) -> None:
    """Helm's longest name of a release; names that YAML takes for something else."""
    values = [f"--set-string=namespaces={{{namespace}}}", f"--set-string=priorityClassName={namespace}"]
    where = (release, f"--namespace={namespace}", "--create-namespace")
    values += ["--set=crds.install=false", "--set=metrics.dashboards.enabled=true"]
    admin.helm("install", *where, str(CHART), *values)
    (deployment,) = admin.get("deployments", f"--namespace={namespace}")["items"]
    assert deployment["spec"]["template"]["spec"]["priorityClassName"] == namespace
    assert len(admin.get("services", f"--namespace={namespace}")["items"]) == 1
    admin.helm("uninstall", release, f"--namespace={namespace}")


@pytest.mark.parametrize(
    ("runtimes", "volume"),
    [
        (("containerd://2.1.3", "containerd://2.2.0"), "ImageVolume"),
        (("containerd://2.1.3", "cri-o://1.36.0"), "InitContainer"),  # which mounts image volumes noexec
        (("cri-o://1.36.0", "containerd://2.1.3"), "InitContainer"),
        (("containerd://2.0.5", "containerd://2.10.0"), "InitContainer"),  # which does not know them
        ((), "InitContainer"),
    ],
    ids=["containerd", "one-of-cri-o", "the-first-of-cri-o", "an-older-one", "no-nodes"],
)
def test_the_agent_is_mounted_where_every_node_runs_it_from_there(
    admin: Admin, runtimes: tuple[str, ...], volume: str
) -> None:
    """`agent.volume: Auto`, the default, looks at the nodes that there are."""
    nodes = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": f"node-{index}"},
            "status": {"nodeInfo": {"containerRuntimeVersion": runtime}},
        }
        for index, runtime in enumerate(runtimes)
    ]
    try:
        for node in nodes:
            admin.kubectl("create", "-f", "-", stdin=json.dumps(node))
        values = ("--set=crds.install=false",)
        rendered = admin.helm("install", "auto", str(CHART), "--namespace=default", "--dry-run=server", *values)
        assert f"--agent-volume={volume}\n" in rendered
    finally:
        admin.kubectl("delete", "nodes", "--all")
