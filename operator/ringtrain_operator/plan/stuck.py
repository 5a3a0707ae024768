"""Pods that stay Terminating because their node is dead: nobody is left to say that they ended."""

from __future__ import annotations

from datetime import datetime, timedelta

from ..observe import PodView
from .result import Deletion

# After the pod's own grace period (its deletionTimestamp includes that).
FORCE_AFTER_S = 60


def force_time(pod: PodView) -> datetime | None:
    """When a Terminating pod may be deleted by force; None while its node may still be ending it."""
    dead = pod.node_ready is False or pod.reason == "NodeLost" or pod.disruption == "DeletionByTaintManager"
    if pod.deletion_time is None or not dead:
        return None
    return pod.deletion_time + timedelta(seconds=FORCE_AFTER_S)


def deletion(pod: PodView, now: datetime) -> Deletion | None:
    """How to get rid of `pod`: ask, force, or (None) wait."""
    if pod.deletion_time is None:
        return Deletion(pod.ref, pod.uid)
    due = force_time(pod)
    return Deletion(pod.ref, pod.uid, grace_s=0) if due is not None and now >= due else None
