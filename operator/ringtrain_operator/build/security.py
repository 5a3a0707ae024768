"""The restricted Pod Security Standard as a default: what a template says itself is left as it is."""

from __future__ import annotations

from typing import Any

# Group of mounted volumes and of the Secret's files; any number does that is not root's.
FS_GROUP = 65532


def restrict_pod(spec: dict[str, Any]) -> None:
    """Add to a pod's spec (a copy of ours, changed in place) what the restricted standard asks for."""
    context = spec.setdefault("securityContext", {})
    context.setdefault("runAsNonRoot", True)
    context.setdefault("seccompProfile", {"type": "RuntimeDefault"})
    context.setdefault("fsGroup", FS_GROUP)
    for field in ("initContainers", "containers"):
        for container in spec.get(field) or ():
            _restrict_container(container)


def _restrict_container(container: dict[str, Any]) -> None:
    context = container.setdefault("securityContext", {})
    added = (context.get("capabilities") or {}).get("add") or []
    # The API server refuses allowPrivilegeEscalation: false beside either of these.
    if not context.get("privileged") and not {"SYS_ADMIN", "CAP_SYS_ADMIN"} & set(added):
        context.setdefault("allowPrivilegeEscalation", False)
    context.setdefault("capabilities", {"drop": ["ALL"]})
