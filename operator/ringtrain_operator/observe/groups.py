"""From a gang scheduler's PodGroup to `GroupView`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..build.names import ObjectRef
from .model import GroupView

# Conditions with which the schedulers say that a gang found no room: Kubernetes' own, and Volcano's. The plugin
# coscheduling has none; there the pods say it.
_NO_ROOM = {("PodGroupScheduled", "False"), ("Unschedulable", "True")}


def view_group(group: Mapping[str, Any], api_version: str) -> GroupView:
    """What `plan` needs of a PodGroup of ours, read in `api_version`."""
    meta, status = group["metadata"], group.get("status") or {}
    conditions = status.get("conditions") or ()
    told = (c for c in conditions if (c.get("type"), c.get("status")) in _NO_ROOM)
    words = (c.get("message") or c.get("reason") for c in told)
    return GroupView(
        ref=ObjectRef("PodGroup", str(meta["name"]), api_version),
        uid=str(meta.get("uid") or ""),
        words=str(next(words, "") or ""),
        ending="deletionTimestamp" in meta,
    )
