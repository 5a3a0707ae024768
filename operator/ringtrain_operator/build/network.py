"""Network objects of a job: Service, NetworkPolicy and ServiceAccount."""

from typing import Any

from .. import contract
from ..spec.job import Job
from ..spec.reserved import templates_of
from ..spec.template import containers_of
from .agent import ANNOTATION_IMAGE, added_pull_secrets, agent_source
from .names import job_labels, launcher_ports, metadata
from .settings import BuildSettings

# Label of the operator's pods (charts/ringtrain-operator), which read the launcher's /status. Templates cannot set
# labels of ringtrain.dev, and the policy also requires the operator's namespace.
OPERATOR_LABELS = {contract.LABEL_COMPONENT: "operator"}
LABEL_NAMESPACE = "kubernetes.io/metadata.name"


def build_service(job: Job, settings: BuildSettings | None = None) -> dict[str, Any]:
    """Return a headless Service that gives every pod of the job a host name, ready or not."""
    source = agent_source(job, settings or BuildSettings())
    extra = {"annotations": {ANNOTATION_IMAGE: source.image}} if source is not None else {}
    control_port, status_port = launcher_ports(job)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(job, job.name, job_labels(job)) | extra,
        "spec": {
            "clusterIP": "None",
            # Agents must find the launcher before any pod is ready.
            "publishNotReadyAddresses": True,
            "selector": {contract.LABEL_JOB: job.name},
            "ports": [
                {"name": "control", "port": control_port, "protocol": "TCP"},
                {"name": "status", "port": status_port, "protocol": "TCP"},
            ],
        },
    }


def build_service_account(job: Job, settings: BuildSettings | None = None) -> dict[str, Any]:
    """Return a ServiceAccount without permissions and without a mounted token.

    If the job's pods use the agent's image, the account has the Secrets to pull it.
    """
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(job, job.name, job_labels(job)),
        "automountServiceAccountToken": False,
    }
    source = agent_source(job, settings or BuildSettings())
    if source is not None and source.pull_secrets:
        account["imagePullSecrets"] = added_pull_secrets((), source.pull_secrets)
    return account


def build_network_policy(job: Job, settings: BuildSettings | None = None) -> dict[str, Any]:
    """Return a policy that admits the job's own pods, and the operator and others in `settings` at some ports."""
    settings = settings or BuildSettings()
    own = {"podSelector": {"matchLabels": {contract.LABEL_JOB: job.name}}}
    status_port = [{"port": contract.PORT_STATUS, "protocol": "TCP"}]
    admitted = [
        (_operator_peers(settings), status_port),
        (list(settings.metrics_from), status_port),
        (list(settings.template_ports_from), _template_ports(job)),
    ]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(job, job.name, job_labels(job)),
        "spec": {
            "podSelector": {"matchLabels": {contract.LABEL_JOB: job.name}},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [own]},
                *({"from": peers, "ports": ports} for peers, ports in admitted if peers and ports),
            ],
        },
    }


def _operator_peers(settings: BuildSettings) -> list[dict[str, Any]]:
    if not settings.operator_namespace:
        return []
    namespace = {"matchLabels": {LABEL_NAMESPACE: settings.operator_namespace}}
    return [{"namespaceSelector": namespace, "podSelector": {"matchLabels": dict(OPERATOR_LABELS)}}]


def _template_ports(job: Job) -> list[dict[str, Any]]:
    """Return the ports that the templates' containers declare, without duplicates."""
    found: dict[tuple[int, str], None] = {}
    for template in templates_of(job.spec).values():
        for container in containers_of(template):
            for port in container.get("ports") or ():
                found[(int(port["containerPort"]), str(port.get("protocol") or "TCP"))] = None
    return [{"port": port, "protocol": protocol} for port, protocol in found]
