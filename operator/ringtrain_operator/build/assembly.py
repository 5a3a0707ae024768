"""What every pod of a job is made of: a copy of its template, and the operator's names and defaults."""

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

# What a template that leaves out the image has from the worker's pod beside it.
_OF_THE_WORKER = ("imagePullSecrets", "securityContext", "priorityClassName", "terminationGracePeriodSeconds")
# Of a container: as whom its image can be run.
_USER_FIELDS = ("runAsUser", "runAsGroup", "runAsNonRoot", "seLinuxOptions")
# In the worker's environment they are about its devices and its rank.
_ABOUT_A_RANK = frozenset({ENV_NVIDIA_VISIBLE_DEVICES, ENV_TF_CONFIG})


def new_pod(job: Job, template: Mapping[str, Any], name: str, labels: Mapping[str, str]) -> Pod:
    """A copy of the template under the operator's name, labels and owner."""
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
    """To the API a null field is an absent one; here too."""
    return {key: value for key, value in fields.items() if value is not None}


def finish_pod(job: Job, pod: Pod, settings: BuildSettings | None) -> None:
    """What every role gets last: identity, name on the network, termination message, restricted defaults."""
    spec = pod["spec"]
    spec["restartPolicy"] = "Never"
    spec["hostname"] = pod["metadata"]["name"]
    spec["subdomain"] = job.name
    if not spec.get("serviceAccountName"):
        spec["serviceAccountName"] = job.name
        spec.setdefault("automountServiceAccountToken", False)
    spec.setdefault("enableServiceLinks", False)
    # What never started leaves no message; the end of its log is better than nothing.
    for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
        container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    if spec.get("hostNetwork") and spec.get("dnsPolicy", "ClusterFirst") == "ClusterFirst":
        spec["dnsPolicy"] = "ClusterFirstWithHostNet"  # else it asks the node's servers, which know no Service
    priority = job.spec.scheduling.priority_class_name
    if priority and not spec.get("priorityClassName"):
        spec["priorityClassName"] = priority
    main = spec["containers"][0]
    path = main.setdefault("terminationMessagePath", environment.DEFAULT_TERMINATION_MESSAGE_PATH)
    main["env"].append({"name": contract.ENV_TERMINATION_MESSAGE_PATH, "value": path})
    add_security_defaults(spec, (settings or BuildSettings()).fs_group)


def add_devices(container: dict[str, Any], devices: dict[str, int]) -> None:
    """Extended resources cannot be overcommitted: requests equal limits."""
    if not devices:
        return
    resources = container.setdefault("resources", {})
    for field in ("limits", "requests"):
        resources[field] = {**(resources.get(field) or {}), **{name: str(n) for name, n in devices.items()}}


def completed_pod_template(job: Job, given: Mapping[str, Any], name: str) -> Pod:
    """The `given` template with what it leaves out taken from the worker's; its first container has a name."""
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
    """Have the worker's image run as the user whom the worker's container has, unless the template names one."""
    given = main.get("securityContext") or {}
    said = {**(spec.get("securityContext") or {}), **given}
    theirs = trainer.get("securityContext") or {}
    taken = {field: theirs[field] for field in _USER_FIELDS if field in theirs and field not in said}
    if taken:
        main["securityContext"] = {**taken, **given}


def template_without_devices(job: Job) -> Pod:
    """The worker's template without what makes its containers a rank's: devices, and variables about them."""
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
