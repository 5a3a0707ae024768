"""Construction of a job's objects as dicts: pods, Service, NetworkPolicy, Secret and others. Nothing calls the API."""

from .agent import added_pull_secrets
from .auxiliary import build_data_worker_pod, build_evaluator_pod
from .credentials import Issuer, build_secret, issue_credentials
from .names import (
    data_worker_name,
    evaluator_name,
    job_labels,
    launcher_name,
    secret_name,
    worker_name,
    worker_selector,
)
from .network import build_network_policy, build_service, build_service_account
from .pods import RESTARTED_CODES, PodIncarnation, build_launcher_pod, build_typical_worker_pod, build_worker_pod
from .security import SECURITY_FIELDS, secured_pod
from .settings import AGENT_RESOURCES, LAUNCHER_RESOURCES, AgentSource, BuildSettings

__all__ = [
    "AGENT_RESOURCES",
    "LAUNCHER_RESOURCES",
    "RESTARTED_CODES",
    "SECURITY_FIELDS",
    "AgentSource",
    "BuildSettings",
    "Issuer",
    "PodIncarnation",
    "added_pull_secrets",
    "build_data_worker_pod",
    "build_evaluator_pod",
    "build_launcher_pod",
    "build_network_policy",
    "build_secret",
    "build_service",
    "build_service_account",
    "build_typical_worker_pod",
    "build_worker_pod",
    "data_worker_name",
    "evaluator_name",
    "issue_credentials",
    "job_labels",
    "launcher_name",
    "secret_name",
    "secured_pod",
    "worker_name",
    "worker_selector",
]
