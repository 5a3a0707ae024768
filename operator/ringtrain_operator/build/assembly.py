"""Parts that all pods of a job have in common: a copy of the pod template, and names and defaults of the operator."""

import copy
from collections.abc import Mapping
from typing import Any

from .. import contract
from ..spec.job import Job
from ..spec.reserved import ENV_NVIDIA_VISIBLE_DEVICES, ENV_TF_CONFIG
from . import environment, names
from .platform import run_where_image_does
from .security import add_security_defaults
from .settings import BuildSettings

Pod = dict[str, Any]

# Fields that a template without an image gets from the worker's template.
_OF_THE_WORKER = ("imagePullSecrets", "securityContext", "priorityClassName", "terminationGracePeriodSeconds")
# Fields of a container that determine the user of its image.
_USER_FIELDS = ("runAsUser", "runAsGroup", "runAsNonRoot", "seLinuxOptions")
# Variables of the worker that describe its devices and its rank.
_ABOUT_A_RANK = frozenset({ENV_NVIDIA_VISIBLE_DEVICES, ENV_TF_CONFIG})


def new_pod(job: Job, template: Mapping[str, Any], name: str, labels: Mapping[str, str]) -> Pod:
    """Return a copy of the template with the operator's name, labels and owner."""
    given = template.get("metadata") or {}
    metadata = names.metadata(job, name, {**(given.get("labels") or {}), **labels})
    if given.get("annotations"):
        metadata["annotations"] = dict(given["annotations"])
    spec = _pod_without_nulls(copy.deepcopy(template.get("spec") or {}))
    for field in ("initContainers", "containers"):
        if field in spec:
            spec[field] = [_pod_without_nulls(container) for container in spec[field]]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _pod_without_nulls(fields: dict[str, Any]) -> dict[str, Any]:
    """Return `fields` without null values; the API treats a null field as absent."""
    return {key: value for key, value in fields.items() if value is not None}


def finish_pod(job: Job, pod: Pod, settings: BuildSettings | None) -> None:
    """Set fields that pods of all roles need: identity, host name, termination message, security defaults."""
    spec = pod["spec"]
    spec["restartPolicy"] = "Never"
    spec["hostname"] = pod["metadata"]["name"]
    spec["subdomain"] = job.name
    if not spec.get("serviceAccountName"):
        spec["serviceAccountName"] = job.name
        spec.setdefault("automountServiceAccountToken", False)
    spec.setdefault("enableServiceLinks", False)
    # A container that never started leaves no message; the end of its log replaces it.
    for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
        container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    if spec.get("hostNetwork") and spec.get("dnsPolicy", "ClusterFirst") == "ClusterFirst":
        spec["dnsPolicy"] = "ClusterFirstWithHostNet"  # otherwise the node's DNS is used, which knows no Services
    priority = job.spec.scheduling.priority_class_name
    if priority and not spec.get("priorityClassName"):
        spec["priorityClassName"] = priority
    main = spec["containers"][0]
    path = main.setdefault("terminationMessagePath", environment.DEFAULT_TERMINATION_MESSAGE_PATH)
    main["env"].append({"name": contract.ENV_TERMINATION_MESSAGE_PATH, "value": path})
    add_security_defaults(spec, (settings or BuildSettings()).fs_group)


def add_devices(container: dict[str, Any], devices: dict[str, int]) -> None:
    """Add `devices` to a container's requests and limits, in place. For extended resources Kubernetes requires both
    to be equal."""
    if not devices:
        return
    resources = container.setdefault("resources", {})
    for field in ("limits", "requests"):
        resources[field] = {**(resources.get(field) or {}), **{name: str(n) for name, n in devices.items()}}


def completed_pod_template(job: Job, given: Mapping[str, Any], name: str) -> Pod:
    """Return the template `given`, with missing fields copied from the worker's template. If the first container has no
    name, it gets `name`."""
    template = copy.deepcopy(dict(given))
    worker = job.spec.worker.template["spec"]
    trainer = worker["containers"][0]
    spec = template["spec"] = _pod_without_nulls(template.get("spec") or {})
    spec["containers"] = list(spec.get("containers") or [{}])
    main = spec["containers"][0] = _pod_without_nulls(spec["containers"][0])
    main.setdefault("name", name)
    if not main.get("image"):
        main["image"] = trainer["image"]
        for field in ("imagePullPolicy", "workingDir"):
            if trainer.get(field):
                main.setdefault(field, trainer[field])
        _run_pod_like(spec, main, trainer)
        own, theirs = spec.get("imagePullSecrets") or [], worker.get("imagePullSecrets") or []
        if secrets := [*own, *(secret for secret in theirs if secret not in own)]:
            spec["imagePullSecrets"] = copy.deepcopy(secrets)
        run_where_image_does(spec, worker)
    for field in _OF_THE_WORKER:
        if worker.get(field):
            spec.setdefault(field, copy.deepcopy(worker[field]))
    return template


def _run_pod_like(spec: Pod, main: Pod, trainer: Mapping[str, Any]) -> None:
    """Copy the user from the worker's container `trainer` to `main`, in place, unless the pod's template sets a user.

    `spec`: spec of the pod with the container `main`.
    """
    given = main.get("securityContext") or {}
    combined = {**(spec.get("securityContext") or {}), **given}
    theirs = trainer.get("securityContext") or {}
    copied = {field: theirs[field] for field in _USER_FIELDS if field in theirs and field not in combined}
    if copied:
        main["securityContext"] = {**copied, **given}


def template_without_devices(job: Job) -> Pod:
    """Return the worker's template without devices and without the variables that describe devices or a rank."""
    template = copy.deepcopy(job.spec.worker.template)
    spec = template["spec"]
    spec.pop("resourceClaims", None)
    for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
        resources = container.get("resources") or {}
        resources.pop("claims", None)
        for field in ("limits", "requests"):
            if resources.get(field):
                resources[field] = {name: n for name, n in resources[field].items() if "/" not in name}
    main = spec["containers"][0]
    main["env"] = [one for one in main.get("env") or () if one.get("name") not in _ABOUT_A_RANK]
    return template
