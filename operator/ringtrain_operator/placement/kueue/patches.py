"""What is written into a Workload that exists, as JSON patches."""

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

# Of a condition; Kueue refuses a longer one.
_LONGEST_MESSAGE = 1024


def quota_returned(view: WorkloadView, now: datetime) -> Patch:
    """To a Workload's status when it was evicted and the job's pods are gone: the quota is another's now.

    Kueue itself queues it again, at once if it was preempted, else when what stood against it has passed.
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
    return [*_unchanged_since(view), *removed, _kueue_conditions(conditions)]


def conditions_set(view: WorkloadView, now: datetime, *changes: ConditionFields) -> Patch:
    """To a Workload's status: conditions; empty if it says so already."""
    known = {c["type"]: (c.get("status"), c.get("reason")) for c in view.conditions}
    new = [_kueue_condition(*change) for change in changes if known.get(change[0]) != (change[1], change[2])]
    if not new:
        return []
    conditions = _with_workload_conditions(view, now, *new)
    if not view.conditions:  # nobody has written a status yet, and a patch can't reach into what is not there
        return [*_unchanged_since(view), {"op": "add", "path": "/status", "value": {"conditions": conditions}}]
    return [*_unchanged_since(view), _kueue_conditions(conditions)]


def reclaimed_workload_pods(view: WorkloadView, counts: Mapping[str, int]) -> Patch:
    """To a Workload's status: of each pod set so many pods are not needed any more."""
    pods = [{"name": name, "count": count} for name, count in sorted(counts.items()) if count]
    return [*_unchanged_since(view), {"op": "add", "path": "/status/reclaimablePods", "value": pods}]


def resized_workload(view: WorkloadView, job: Job) -> Patch:
    """To a waiting Workload: the queue and the numbers of pods that the job wants by now."""
    places = {name: place for place, name in enumerate(view.counts)}
    return [
        *_unchanged_since(view),
        {"op": "replace", "path": "/spec/queueName", "value": job.queue},
        *(
            {"op": "replace", "path": f"/spec/podSets/{places[name]}/count", "value": count}
            for name, count in kueue_pod_counts(job).items()
            if name in places
        ),
    ]


def owned_workload(view: WorkloadView, job: Job) -> Patch:
    """To a Workload that was made for the job without being its own."""
    owners = owner_references(job)
    return [*_unchanged_since(view), {"op": "add", "path": "/metadata/ownerReferences", "value": owners}]


def _unchanged_since(view: WorkloadView) -> Patch:
    """Refuses the rest of the patch if somebody has written since."""
    return [{"op": "replace", "path": "/metadata/resourceVersion", "value": view.version}]


def _kueue_conditions(conditions: Sequence[Mapping[str, Any]]) -> Json:
    return {"op": "add", "path": "/status/conditions", "value": [dict(c) for c in conditions]}


def _kueue_condition(kind: str, status: str, reason: str, message: str) -> Json:
    return {"type": kind, "status": status, "reason": reason, "message": message[:_LONGEST_MESSAGE]}


def _with_workload_conditions(view: WorkloadView, now: datetime, *changes: Json) -> list[Mapping[str, Any]]:
    """The Workload's conditions with these in place of their like; a time moves only when a status does."""
    before = {c["type"]: c for c in view.conditions}
    stamp = format_time(now)
    for change in changes:
        old = before.get(change["type"])
        since = old["lastTransitionTime"] if old and old["status"] == change["status"] else stamp
        before[change["type"]] = {**change, "lastTransitionTime": since}
    return list(before.values())
