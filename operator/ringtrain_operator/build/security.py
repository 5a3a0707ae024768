"""Security of pods: as few defaults as mpi-operator and Trainer have, and the restricted Pod Security Standard where
the API server asks for it. What a template says itself is left as it is."""

from collections.abc import Collection, Mapping
from typing import Any

from ..spec.reserved import VOLUME_CHECKPOINT, VOLUME_LOGS

# Fields of the restricted standard that change what an image can do, by the names that refusals have.
SECURITY_FIELDS = ("runAsNonRoot", "capabilities", "allowPrivilegeEscalation")
# Whoever names one of these has decided who reads and writes the volumes.
_OWNERSHIP = ("runAsUser", "runAsGroup", "fsGroup", "supplementalGroups")


def add_security_defaults(spec: dict[str, Any], fs_group: int | None) -> None:
    """Add a seccomp profile and a group to a pod's spec (a copy of ours, changed in place). `fs_group`: of claims that
    we mount; None: the cluster gives one itself."""
    context = spec["securityContext"] = dict(spec.get("securityContext") or {})
    context.setdefault("seccompProfile", {"type": "RuntimeDefault"})
    if fs_group is not None and _needs_group(spec):
        context["fsGroup"] = fs_group
        # Without it every start walks the whole claim.
        context.setdefault("fsGroupChangePolicy", "OnRootMismatch")


def secured_pod(pod: Mapping[str, Any], fields: Collection[str]) -> dict[str, Any]:
    """The pod with those of SECURITY_FIELDS that are in `fields`, unless its template says that itself, or root."""
    spec = dict(pod["spec"])
    context = spec.get("securityContext") or {}
    if "runAsNonRoot" in fields and "runAsNonRoot" not in context and context.get("runAsUser") != 0:
        spec["securityContext"] = {**context, "runAsNonRoot": True}
    for kind in ("initContainers", "containers"):
        if spec.get(kind):
            spec[kind] = [_secured_container(container, fields) for container in spec[kind]]
    return {**pod, "spec": spec}


def _needs_group(spec: Mapping[str, Any]) -> bool:
    """Whether a claim that we mount has to be made writable, and no word of the template says by whom."""
    said = (spec.get("securityContext"), spec["containers"][0].get("securityContext"))
    if any((context or {}).get(field) is not None for context in said for field in _OWNERSHIP):
        return False
    claims = [volume for volume in spec.get("volumes") or () if volume.get("persistentVolumeClaim")]
    return any(volume["name"] in (VOLUME_CHECKPOINT, VOLUME_LOGS) for volume in claims)


def _secured_container(container: Mapping[str, Any], fields: Collection[str]) -> dict[str, Any]:
    context = container.get("securityContext") or {}
    made: dict[str, Any] = {}
    added = (context.get("capabilities") or {}).get("add") or []
    # The API server refuses allowPrivilegeEscalation: false beside either of these.
    if "allowPrivilegeEscalation" in fields and not (
        context.get("privileged") or {"SYS_ADMIN", "CAP_SYS_ADMIN"} & set(added)
    ):
        made["allowPrivilegeEscalation"] = False
    if "capabilities" in fields:
        made["capabilities"] = {"drop": ["ALL"]}
    return {**container, "securityContext": {**made, **context}} if made else dict(container)
