"""The restricted Pod Security Standard as a default, but for the user, whom the image names: what a template says
itself is left as it is."""

from collections.abc import Mapping
from typing import Any

from ..spec.reserved import VOLUME_CHECKPOINT, VOLUME_LOGS

# Whoever names one of these has decided who reads and writes the volumes.
_OWNERSHIP = ("runAsUser", "runAsGroup", "fsGroup", "supplementalGroups")


def restrict_pod(spec: dict[str, Any], fs_group: int | None) -> None:
    """Add to a pod's spec (a copy of ours, changed in place) what the restricted standard asks for, but for
    `runAsNonRoot`. `fs_group`: of claims that we mount; None: the cluster gives one itself."""
    context = spec["securityContext"] = dict(spec.get("securityContext") or {})
    context.setdefault("seccompProfile", {"type": "RuntimeDefault"})
    if fs_group is not None and _needs_group(spec):
        context["fsGroup"] = fs_group
        # Without it every start walks the whole claim.
        context.setdefault("fsGroupChangePolicy", "OnRootMismatch")
    for field in ("initContainers", "containers"):
        for container in spec.get(field) or ():
            _restrict_container(container)


def never_as_root(pod: Mapping[str, Any]) -> dict[str, Any]:
    """The pod with `runAsNonRoot: true`, unless its template says that, or root, itself."""
    context = pod["spec"].get("securityContext") or {}
    if "runAsNonRoot" in context or context.get("runAsUser") == 0:
        return dict(pod)
    return {**pod, "spec": {**pod["spec"], "securityContext": {**context, "runAsNonRoot": True}}}


def _needs_group(spec: Mapping[str, Any]) -> bool:
    """Whether a claim that we mount has to be made writable, and no word of the template says by whom."""
    said = (spec.get("securityContext"), spec["containers"][0].get("securityContext"))
    if any((context or {}).get(field) is not None for context in said for field in _OWNERSHIP):
        return False
    claims = [volume for volume in spec.get("volumes") or () if volume.get("persistentVolumeClaim")]
    return any(volume["name"] in (VOLUME_CHECKPOINT, VOLUME_LOGS) for volume in claims)


def _restrict_container(container: dict[str, Any]) -> None:
    context = container["securityContext"] = dict(container.get("securityContext") or {})
    added = (context.get("capabilities") or {}).get("add") or []
    # The API server refuses allowPrivilegeEscalation: false beside either of these.
    if not context.get("privileged") and not {"SYS_ADMIN", "CAP_SYS_ADMIN"} & set(added):
        context.setdefault("allowPrivilegeEscalation", False)
    context.setdefault("capabilities", {"drop": ["ALL"]})
