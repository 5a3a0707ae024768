"""The real Kueue beside a real control plane: its manager as a process, its webhooks on loopback."""

import base64
import shutil
import signal
import subprocess
import time
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ringtrain_operator.cluster.api.client import ApiClient
from ringtrain_operator.cluster.api.errors import AlreadyExists
from ringtrain_operator.cluster.api.resources import ApiResource
from support.apiserver import ControlPlane, assets_folder
from support.certificates import self_signed
from support.guard import GUARD
from support.objects import NAMESPACES
from support.ports import free_ports

Json = dict[str, Any]
READY_WITHIN_S = 120.0
GROUP_VERSION = "kueue.x-k8s.io/v1beta2"
WORKLOADS = ApiResource(GROUP_VERSION, "Workload", "workloads")
LOCAL_QUEUES = ApiResource(GROUP_VERSION, "LocalQueue", "localqueues")
CLUSTER_QUEUES = ApiResource(GROUP_VERSION, "ClusterQueue", "clusterqueues", namespaced=False)
FLAVORS = ApiResource(GROUP_VERSION, "ResourceFlavor", "resourceflavors", namespaced=False)
TOPOLOGIES = ApiResource(GROUP_VERSION, "Topology", "topologies", namespaced=False)
PRIORITIES = ApiResource(GROUP_VERSION, "WorkloadPriorityClass", "workloadpriorityclasses", namespaced=False)
ADMISSION_CHECKS = ApiResource(GROUP_VERSION, "AdmissionCheck", "admissionchecks", namespaced=False)
PROVISIONING_CONFIGS = ApiResource(
    GROUP_VERSION, "ProvisioningRequestConfig", "provisioningrequestconfigs", namespaced=False
)
PROVISIONING_REQUESTS = ApiResource("autoscaling.x-k8s.io/v1", "ProvisioningRequest", "provisioningrequests")
_ADMISSION = "admissionregistration.k8s.io/v1"
_WEBHOOKS = {
    kind: ApiResource(_ADMISSION, kind, f"{kind.lower()}s", namespaced=False)
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
}
# Of Kueue's webhooks those of kinds that are served here.
_SERVED = ("pod", "workload", "clusterqueue", "cohort", "resourceflavor")
# Of its kinds those that it converts; the others are the same in all versions.
_CONVERTED = ("clusterqueues", "cohorts", "localqueues", "multikueueclusters", "workloads")
# Where Kueue reads the certificate of its metrics; no setting changes that.
_METRICS_CERTIFICATES = "/etc/kueue/metrics/certs"


def _manifests() -> Path:
    return assets_folder().parent / "kueue"


def why_no_kueue() -> str:
    """The reason for a skip; empty if Kueue can be run."""
    missing = [str(p) for p in (assets_folder() / "kueue", _manifests() / "webhooks.yaml") if not p.exists()]
    if missing:
        return f"needs {', '.join(missing)}: Kueue's manager, its CRDs and its webhooks' configuration"
    if shutil.which("unshare") is None:
        return "needs unshare: Kueue's metrics want certificates at a path of their own"
    return ""


def kueue_crds(webhook: str, authority: str) -> tuple[Json, ...]:
    """Kueue's kinds, converted between their versions by Kueue at the address `webhook`."""
    found = []
    for path in sorted(_manifests().glob("kueue.x-k8s.io_*.yaml")):
        crd = yaml.safe_load(path.read_text())
        if crd["spec"]["names"]["plural"] in _CONVERTED:
            config = {"url": f"{webhook}/convert", "caBundle": authority}
            crd["spec"]["conversion"] = {
                "strategy": "Webhook",
                "webhook": {"clientConfig": config, "conversionReviewVersions": ["v1"]},
            }
        found.append(crd)
    return (*found, _provisioning_requests())


def _provisioning_requests() -> Json:
    """The cluster autoscaler's kind, any fields. Kueue looks for it once, when it starts."""
    any_fields = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": any_fields},
    }
    names = {"kind": "ProvisioningRequest", "plural": "provisioningrequests", "singular": "provisioningrequest"}
    group = PROVISIONING_REQUESTS.api_version.partition("/")[0]
    approved = {"api-approved.kubernetes.io": "https://github.com/kubernetes/autoscaler/pull/5848"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names['plural']}.{group}", "annotations": approved},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version]},
    }


@dataclass
class Kueue:
    """A running manager on `plane`. `stop()` ends it."""

    folder: Path
    port: int = 0
    health: int = 0
    authority: str = ""
    _process: subprocess.Popen[bytes] | None = None
    _gates: str = field(default="")

    @classmethod
    def prepare(cls, folder: Path) -> "Kueue":
        """Its certificate and its ports: what the API server must know before it is started."""
        folder.mkdir(parents=True, exist_ok=True)
        made = cls(folder, *free_ports(2))
        key, certificate = self_signed("kueue")
        (folder / "tls.key").write_bytes(key)
        (folder / "tls.crt").write_bytes(certificate)
        made.authority = base64.b64encode(certificate).decode()
        return made

    @property
    def address(self) -> str:
        """Return the address of Kueue's webhooks."""
        return f"https://127.0.0.1:{self.port}"

    async def start(self, plane: ControlPlane) -> None:
        """Install its webhooks, run its manager and wait until it is ready. Raises RuntimeError with its log."""
        async with ApiClient(plane.connection()) as api:
            with suppress(AlreadyExists):
                await api.create(NAMESPACES, None, {"metadata": {"name": "kueue-system"}})
            self._run(plane.kubeconfig())
            self._wait_ready()
            for config in yaml.safe_load_all((_manifests() / "webhooks.yaml").read_text()):
                await api.create(_WEBHOOKS[config["kind"]], None, self._pointed_here(config))

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The running manager."""
        assert self._process is not None
        return self._process

    def stop(self) -> None:
        """End the manager."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            GUARD.ended(self._process.pid)

    def _pointed_here(self, config: Json) -> Json:
        kept = [hook for hook in config["webhooks"] if hook["name"][1:].removesuffix(".kb.io") in _SERVED]
        for hook in kept:
            path = hook["clientConfig"]["service"]["path"]
            hook["clientConfig"] = {"url": f"{self.address}{path}", "caBundle": self.authority}
            if hook["name"].endswith("pod.kb.io"):
                named = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"]}
                hook["namespaceSelector"] = {"matchExpressions": [named]}
        return {**config, "webhooks": kept}

    def _run(self, kubeconfig: Path) -> None:
        config = {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "namespace": "kueue-system",
            "health": {"healthProbeBindAddress": f"127.0.0.1:{self.health}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"host": "127.0.0.1", "port": self.port, "certDir": str(self.folder)},
            "leaderElection": {"leaderElect": False},
            "fairSharing": {"preemptionStrategies": ["LessThanOrEqualToFinalShare", "LessThanInitialShare"]},
            "clientConnection": {"qps": 300, "burst": 500},
            "internalCertManagement": {"enable": False},
            "integrations": {
                "frameworks": ["pod"],
                "externalFrameworks": ["DistributedTrainingJob.v1alpha1.ringtrain.dev"],
            },
        }
        path = self.folder / "config.yaml"
        path.write_text(yaml.safe_dump(config))
        script = (
            f"mount -t tmpfs none /etc && mkdir -p {_METRICS_CERTIFICATES} && "
            f'cp {self.folder}/tls.* {_METRICS_CERTIFICATES} && exec "$@"'
        )
        manager = [str(assets_folder() / "kueue"), f"--config={path}", f"--kubeconfig={kubeconfig}"]
        gates = "--feature-gates=VisibilityOnDemand=false"
        with (self.folder / "kueue.log").open("ab") as out:
            command = ["unshare", "--mount", "sh", "-ec", script, "sh", *manager, gates]
            self._process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
        GUARD.begun(self._process.pid)

    def _wait_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + READY_WITHIN_S
        while time.monotonic() < deadline and self._process.poll() is None:
            if self._answers():
                return
            time.sleep(0.1)  # a process outside this one: there is no event to wait on
        log = (self.folder / "kueue.log").read_text(errors="replace")[-3000:]
        raise RuntimeError(f"Kueue did not become ready:\n{log}")

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.health}/readyz", timeout=5) as got:
                return bool(got.status == 200)
        except OSError:
            return False
