"""JSON patches that change an existing Workload of Kueue."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from ...build.names import owner_references
from ...spec.base import format_time
from ...spec.job import Job
from .view import WorkloadView
from .workload import kueue_pod_counts

Json = dict[str, Any]
Patch = list[Json]
# A condition: type, status, reason, message.
ConditionFields = tuple[str, str, str, str]

# Maximum length of a condition's message; Kueue refuses a longer one.
_LONGEST_MESSAGE = 1024


def quota_release_patch(view: WorkloadView, now: datetime) -> Patch:
    """Return a patch that releases the quota of an evicted Workload, after the job's pods are deleted.

    Kueue then queues the Workload again: at once after a preemption or a loss of nodes, otherwise when the obstacle
    has passed.
    """
    evicted = view.evicted or {}
    reason, message = str(evicted.get("reason") or "Pending"), str(evicted.get("message") or "")
    again = "True" if reason in ("Preempted", "NodeFailures") else "False"
    conditions = _with_workload_conditions(
        view,
        now,
        _kueue_condition("Requeued", again, reason, message),
        _kueue_condition("QuotaReserved", "False", "Pending", message),
        _kueue_condition("Admitted", "False", "NoReservation", "The workload has no reservation"),
        _kueue_condition("PodsReady", "False", "WaitForStart", "Not all pods are ready or succeeded"),
    )
    removed = [{"op": "remove", "path": "/status/admission"}] if view.grants else []
    return [*_version_guard(view), *removed, _kueue_conditions(conditions)]


def conditions_patch(view: WorkloadView, now: datetime, *changes: ConditionFields) -> Patch:
    """Return a patch that sets conditions of the Workload; empty if the Workload has these conditions already."""
    known = {c["type"]: (c.get("status"), c.get("reason")) for c in view.conditions}
    new = [_kueue_condition(*change) for change in changes if known.get(change[0]) != (change[1], change[2])]
    if not new:
        return []
    conditions = _with_workload_conditions(view, now, *new)
    if not view.conditions:  # without a status the path /status/conditions does not exist
        return [*_version_guard(view), {"op": "add", "path": "/status", "value": {"conditions": conditions}}]
    return [*_version_guard(view), _kueue_conditions(conditions)]


def reclaimed_pods_patch(view: WorkloadView, counts: Mapping[str, int]) -> Patch:
    """Return a patch that reports how many pods of each pod set no longer need quota."""
    pods = [{"name": name, "count": count} for name, count in sorted(counts.items()) if count]
    return [*_version_guard(view), {"op": "add", "path": "/status/reclaimablePods", "value": pods}]


def resize_patch(view: WorkloadView, job: Job) -> Patch:
    """Return a patch that gives a waiting Workload the job's current queue and numbers of pods."""
    places = {name: place for place, name in enumerate(view.counts)}
    return [
        *_version_guard(view),
        {"op": "replace", "path": "/spec/queueName", "value": job.queue},
        *(
            {"op": "replace", "path": f"/spec/podSets/{places[name]}/count", "value": count}
            for name, count in kueue_pod_counts(job).items()
            if name in places
        ),
    ]


def owner_patch(view: WorkloadView, job: Job) -> Patch:
    """Return a patch that makes the job the owner of a Workload that another controller created for it."""
    owners = owner_references(job)
    return [*_version_guard(view), {"op": "add", "path": "/metadata/ownerReferences", "value": owners}]


def _version_guard(view: WorkloadView) -> Patch:
    """Return a patch operation that fails if the Workload has changed since it was read."""
    return [{"op": "replace", "path": "/metadata/resourceVersion", "value": view.version}]


def _kueue_conditions(conditions: Sequence[Mapping[str, Any]]) -> Json:
    return {"op": "add", "path": "/status/conditions", "value": [dict(c) for c in conditions]}


def _kueue_condition(kind: str, status: str, reason: str, message: str) -> Json:
    return {"type": kind, "status": status, "reason": reason, "message": message[:_LONGEST_MESSAGE]}


def _with_workload_conditions(view: WorkloadView, now: datetime, *changes: Json) -> list[Mapping[str, Any]]:
    """Return the Workload's conditions after `changes`. A condition's transition time changes only together with its
    status."""
    before = {c["type"]: c for c in view.conditions}
    stamp = format_time(now)
    for change in changes:
        old = before.get(change["type"])
        since = old["lastTransitionTime"] if old and old["status"] == change["status"] else stamp
        before[change["type"]] = {**change, "lastTransitionTime": since}
    return list(before.values())
