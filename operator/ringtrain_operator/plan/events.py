"""Events: told when a condition turns or its reason changes, so that the same thing is never said twice."""

from __future__ import annotations

from ..status.counts import counted
from ..status.model import Condition, JobStatus
from .result import Event

# Reasons of Running=False that are stages of every start; a person reads them in the condition, not as events.
_STAGES = frozenset(
    {
        "WaitingForPods",
        "WaitingForAgents",
        "WaitingForLauncher",
        "WaitingForOldPods",
        "BackOff",
        "Suspended",
        "Finished",
    }
)


def events_between(before: JobStatus, after: JobStatus) -> tuple[Event, ...]:
    """What a person watching the job is told about the step from `before` to `after`."""
    restarting = after.condition("Restarting")
    changes = (
        _event(before.condition(condition.type), condition)
        for condition in after.conditions
        # Running=False right after a decision to restart repeats what Restarting=True says.
        if not (condition.type == "Running" and restarting and condition.message == restarting.message)
    )
    return (
        *_started(before, after),
        *_goes_on(before, after),
        *(event for event in changes if event is not None),
    )


def _started(before: JobStatus, after: JobStatus) -> tuple[Event, ...]:
    if not _has_pods(after) or (_has_pods(before) and before.attempt == after.attempt):
        return ()
    text = f"attempt {after.attempt} with {counted(after.ledger.attempt_workers, 'worker')}"
    return (Event("Normal", "AttemptStarted", text),)


def _goes_on(before: JobStatus, after: JobStatus) -> tuple[Event, ...]:
    """What checkpoint an attempt went on from, once it is known."""
    was = before.progress.started_from if before.progress else None
    now = after.progress.started_from if after.progress else None
    if now is None or now == was:
        return ()
    return (Event("Normal", "StartedFrom", f"attempt {after.attempt} went on from {now}"),)


def _has_pods(status: JobStatus) -> bool:
    """Whether a pod of the present attempt exists, or existed: one whose pods are all refused has not started."""
    by_role = (status.replica_statuses.launcher, status.replica_statuses.worker)
    return any(pods.active or pods.succeeded or pods.failed for pods in by_role)


def _event(before: Condition | None, after: Condition) -> Event | None:
    changed = before is None or (before.status, before.reason) != (after.status, after.reason)
    # Restarted twice for the same reason without running in between is still twice.
    again = after.type == "Restarting" and before is not None and before.message != after.message
    if not (changed or again):
        return None
    warning = Event("Warning", after.reason, after.message)
    match after.type, after.status:
        case ("Accepted", "False") | ("Failed", "True"):
            return warning
        case "Running", "True":
            return Event("Normal", "Running", after.message) if after.reason == "GangRunning" else warning
        case "Running", "False" if after.reason not in _STAGES:
            return warning
        case "Suspended" | "Succeeded", "True":
            return Event("Normal", after.type, after.message)
        case "Suspended", "False":
            return Event("Normal", after.reason, after.message)
        case "Restarting", "True":
            return Event("Normal" if after.reason == "Scaled" else "Warning", "Restarting", after.message)
    return None
