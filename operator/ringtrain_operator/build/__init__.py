"""The objects of a job, as dicts: pods, Service, ServiceAccount, NetworkPolicy, Secret. Nothing is touched."""

from .agent import added_pull_secrets
from .capacity import (
    AUTOSCALER_GROUP,
    build_pod_template,
    build_request,
    on_provisioned,
    request_name,
    template_name,
)
from .credentials import Issuer, build_secret, issue_credentials
from .gangs import SCHEDULERS, build_group, group_name, in_group, scheduler_of
from .lasting import build_data_worker_pod, build_evaluator_pod
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
from .pods import RESTARTED_CODES, Incarnation, build_launcher_pod, build_worker_pod
from .settings import AGENT_RESOURCES, LAUNCHER_RESOURCES, AgentSource, Settings
from .workload import POD_SETS, build_workload, grouped, is_prebuilt, pod_counts, queued_alone, workload_name

__all__ = [
    "AGENT_RESOURCES",
    "AUTOSCALER_GROUP",
    "LAUNCHER_RESOURCES",
    "POD_SETS",
    "RESTARTED_CODES",
    "SCHEDULERS",
    "AgentSource",
    "Incarnation",
    "Issuer",
    "Settings",
    "added_pull_secrets",
    "build_data_worker_pod",
    "build_evaluator_pod",
    "build_group",
    "build_launcher_pod",
    "build_network_policy",
    "build_pod_template",
    "build_request",
    "build_secret",
    "build_service",
    "build_service_account",
    "build_worker_pod",
    "build_workload",
    "data_worker_name",
    "evaluator_name",
    "group_name",
    "grouped",
    "in_group",
    "is_prebuilt",
    "issue_credentials",
    "job_labels",
    "launcher_name",
    "on_provisioned",
    "pod_counts",
    "queued_alone",
    "request_name",
    "scheduler_of",
    "secret_name",
    "template_name",
    "worker_name",
    "worker_selector",
    "workload_name",
]
