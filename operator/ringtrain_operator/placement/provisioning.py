"""What a cluster autoscaler is asked for: a ProvisioningRequest, and templates of the pods that it is about."""

from __future__ import annotations

from typing import Any

from ..build import names
from ..spec.job import Job
from ..spec.scheduling import Provisioning
from .kueue.workload import weighed_template

Json = dict[str, Any]

AUTOSCALER_GROUP = "autoscaling.x-k8s.io"
# By these a pod takes what was made for it, and makes the autoscaler look for nothing more.
_REQUEST_ANNOTATION = f"{AUTOSCALER_GROUP}/consume-provisioning-request"
_CLASS_ANNOTATION = f"{AUTOSCALER_GROUP}/provisioning-class-name"


def request_name(job: Job, attempt: int) -> str:
    """Name of the attempt's ProvisioningRequest; no other job has it, and no other attempt."""
    return names.group_name(job.name, job.uid, attempt)


def template_name(job: Job, attempt: int, pod_set: str) -> str:
    """Name of the PodTemplate of one of the request's pod sets."""
    return f"{request_name(job, attempt)}-{pod_set}"


def build_pod_template(job: Job, attempt: int, pod_set: str, pod: Json) -> Json:
    """The PodTemplate of pods like this one, as far as an autoscaler weighs them."""
    name = template_name(job, attempt, pod_set)
    metadata = names.metadata(job, name, names.job_labels(job))
    return {"apiVersion": "v1", "kind": "PodTemplate", "metadata": metadata, "template": weighed_template(pod)}


def build_request(job: Job, attempt: int, api_version: str, wanted: Provisioning, counts: dict[str, int]) -> Json:
    """The attempt's ProvisioningRequest; `counts`: pods of each pod set."""
    pod_sets = [
        {"podTemplateRef": {"name": template_name(job, attempt, pod_set)}, "count": count}
        for pod_set, count in counts.items()
    ]
    spec: Json = {"provisioningClassName": wanted.class_name, "podSets": pod_sets}
    if wanted.parameters:
        spec["parameters"] = dict(wanted.parameters)
    metadata = names.metadata(job, request_name(job, attempt), names.job_labels(job))
    return {"apiVersion": api_version, "kind": "ProvisioningRequest", "metadata": metadata, "spec": spec}


def on_provisioned(job: Job, pod: Json, attempt: int, wanted: Provisioning) -> Json:
    """The pod as one that takes what the attempt's request was given."""
    annotations = pod["metadata"].setdefault("annotations", {})
    annotations[_REQUEST_ANNOTATION] = request_name(job, attempt)
    annotations[_CLASS_ANNOTATION] = wanted.class_name
    return pod
