"""Who may talk to the job's pods, and under which names: Service, NetworkPolicy, ServiceAccount."""

from __future__ import annotations

from typing import Any

from .. import contract
from ..spec import Job
from .names import job_labels, metadata

# Label of the operator's own pods (charts/ringtrain-operator): they read the launcher's /status.
OPERATOR_LABELS = {contract.LABEL_NAME: "ringtrain-operator"}


def build_service(job: Job) -> dict[str, Any]:
    """A headless Service that gives every pod of the job a host name, ready or not."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(job, job.name, job_labels(job)),
        "spec": {
            "clusterIP": "None",
            # Agents must find the launcher before anything is ready.
            "publishNotReadyAddresses": True,
            "selector": {contract.LABEL_JOB: job.name},
            "ports": [
                {"name": "control", "port": contract.PORT_LAUNCHER, "protocol": "TCP"},
                {"name": "status", "port": contract.PORT_STATUS, "protocol": "TCP"},
            ],
        },
    }


def build_service_account(job: Job) -> dict[str, Any]:
    """An identity without any permission, whose token is mounted nowhere."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(job, job.name, job_labels(job)),
        "automountServiceAccountToken": False,
    }


def build_network_policy(job: Job) -> dict[str, Any]:
    """Only the job's own pods reach its pods; the operator reaches the status port."""
    own = {"podSelector": {"matchLabels": {contract.LABEL_JOB: job.name}}}
    operator = {"namespaceSelector": {}, "podSelector": {"matchLabels": dict(OPERATOR_LABELS)}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(job, job.name, job_labels(job)),
        "spec": {
            "podSelector": {"matchLabels": {contract.LABEL_JOB: job.name}},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [own]},
                {"from": [operator], "ports": [{"port": contract.PORT_STATUS, "protocol": "TCP"}]},
            ],
        },
    }
