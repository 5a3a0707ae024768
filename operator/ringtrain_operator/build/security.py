"""Security settings of pods: a few defaults, and more if the API server requires them for the namespace.

The restricted Pod Security Standard is applied if the API server refuses the pod without. Templates take precedence.
"""

from collections.abc import Collection, Mapping
from typing import Any

from ..spec.reserved import VOLUME_CHECKPOINT, VOLUME_LOGS

# Fields of the restricted standard that may break an image, by the names in refusals of the API server.
SECURITY_FIELDS = ("runAsNonRoot", "capabilities", "allowPrivilegeEscalation")
# A template with one of these fields has decided about the ownership of volumes.
_OWNERSHIP = ("runAsUser", "runAsGroup", "fsGroup", "supplementalGroups")


def add_security_defaults(spec: dict[str, Any], fs_group: int | None) -> None:
    """Add a seccomp profile and an fsGroup to a pod's spec, in place.

    `fs_group`: group of the claims that the operator mounts; None if the cluster assigns one.
    """
    context = spec["securityContext"] = dict(spec.get("securityContext") or {})
    context.setdefault("seccompProfile", {"type": "RuntimeDefault"})
    if fs_group is not None and _needs_group(spec):
        context["fsGroup"] = fs_group
        # Otherwise the kubelet changes every file of the claim at every start.
        context.setdefault("fsGroupChangePolicy", "OnRootMismatch")


def secured_pod(pod: Mapping[str, Any], fields: Collection[str]) -> dict[str, Any]:
    """Return the pod with those SECURITY_FIELDS that `fields` names, unless its template sets them or uses root."""
    spec = dict(pod["spec"])
    context = spec.get("securityContext") or {}
    if "runAsNonRoot" in fields and "runAsNonRoot" not in context and context.get("runAsUser") != 0:
        spec["securityContext"] = {**context, "runAsNonRoot": True}
    for kind in ("initContainers", "containers"):
        if spec.get(kind):
            spec[kind] = [_secured_container(container, fields) for container in spec[kind]]
    return {**pod, "spec": spec}


def _needs_group(spec: Mapping[str, Any]) -> bool:
    """Return whether a pod needs an fsGroup to write into a claim of the operator; false if its template sets a user or
    group."""
    contexts = (spec.get("securityContext"), spec["containers"][0].get("securityContext"))
    if any((context or {}).get(field) is not None for context in contexts for field in _OWNERSHIP):
        return False
    claims = [volume for volume in spec.get("volumes") or () if volume.get("persistentVolumeClaim")]
    return any(volume["name"] in (VOLUME_CHECKPOINT, VOLUME_LOGS) for volume in claims)


def _secured_container(container: Mapping[str, Any], fields: Collection[str]) -> dict[str, Any]:
    context = container.get("securityContext") or {}
    made: dict[str, Any] = {}
    added = (context.get("capabilities") or {}).get("add") or []
    # The API server refuses allowPrivilegeEscalation: false together with either of these.
    if "allowPrivilegeEscalation" in fields and not (
        context.get("privileged") or {"SYS_ADMIN", "CAP_SYS_ADMIN"} & set(added)
    ):
        made["allowPrivilegeEscalation"] = False
    if "capabilities" in fields:
        made["capabilities"] = {"drop": ["ALL"]}
    return {**container, "securityContext": {**made, **context}} if made else dict(container)
