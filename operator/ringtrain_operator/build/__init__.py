"""The objects of a job, as dicts: pods, Service, ServiceAccount, NetworkPolicy, Secret. Nothing is touched."""

from .credentials import Issuer, build_secret, issue_credentials
from .names import job_labels, launcher_name, secret_name, worker_name, worker_selector
from .network import build_network_policy, build_service, build_service_account
from .pods import RESTARTED_CODES, Incarnation, build_launcher_pod, build_worker_pod
from .settings import LAUNCHER_RESOURCES, Settings

__all__ = [
    "LAUNCHER_RESOURCES",
    "RESTARTED_CODES",
    "Incarnation",
    "Issuer",
    "Settings",
    "build_launcher_pod",
    "build_network_policy",
    "build_secret",
    "build_service",
    "build_service_account",
    "build_worker_pod",
    "issue_credentials",
    "job_labels",
    "launcher_name",
    "secret_name",
    "worker_name",
    "worker_selector",
]
