"""Kubernetes Events of a job. One is sent when the status or reason of a condition changes."""

from collections.abc import Iterator

from ..errors import counted
from ..status.model import Condition, JobStatus
from ..workers.incarnations import avoidance_text, avoided_nodes, incarnations_of, new_worker_losses
from .result import PlannedEvent

# Reasons of Running=False that occur in every start; they are visible in the condition and cause no events.
_STAGES = frozenset(
    {
        "WaitingForPods",
        "WaitingForAgents",
        "WaitingForLauncher",
        "WaitingForOldPods",
        "BackOff",
        "Suspended",
        "WaitingForQueue",
        "WaitingForCapacity",
        "Finished",
    }
)
# Reasons of Degraded=True that follow from another event, or from a change of the spec.
_TOLD_OTHERWISE = frozenset({"WorkerLost", "LauncherLost", "WorkersJoining"})


def events_between(before: JobStatus, after: JobStatus) -> tuple[PlannedEvent, ...]:
    """Return the events for the change of status from `before` to `after`."""
    restarting = after.condition("Restarting")
    changes = (
        _planned_event(before.condition(condition.type), condition)
        for condition in after.conditions
        # Running=False right after a decision to restart repeats the message of Restarting=True.
        if not (condition.type == "Running" and restarting and condition.message == restarting.message)
    )
    return (
        *_start_events(before, after),
        *_world_events(before, after),
        *_resume_events(before, after),
        *_auxiliary_pod_events(before, after),
        *(event for event in changes if event is not None),
    )


def _start_events(before: JobStatus, after: JobStatus) -> Iterator[PlannedEvent]:
    if after.finished or not _has_pods(after) or (_has_pods(before) and before.attempt == after.attempt):
        return
    text = f"attempt {after.attempt} with {counted(after.ledger.attempt_workers, 'worker')}"
    yield PlannedEvent("Normal", "AttemptStarted", text)
    if after.ledger.queued_as == "PodGroup":
        yield PlannedEvent(
            "Warning",
            "QueueByLabels",
            f"attempt {after.attempt} did not wait in its queue: the operator found no Kueue that it may use; its "
            "labels on the pods have an effect only if Kueue manages plain pods",
        )


def _world_events(before: JobStatus, after: JobStatus) -> Iterator[PlannedEvent]:
    """Yield events about an elastic job's workers, its losses, avoided nodes and generations."""
    if after.ledger.incarnations is None:
        return
    was, now = before.ledger.attempt_workers, after.ledger.attempt_workers
    if before.attempt == after.attempt and was != now:
        yield PlannedEvent("Normal", "Scaled", f"worker.replicas changed from {was} to {now}; workers join and leave")
    for loss in new_worker_losses(before, after):
        node = f" on node {loss.node}" if loss.node else ""
        text = f"{loss.pod}{node} {loss.cause}; it will be replaced"
        yield PlannedEvent("Warning", "LauncherLost" if loss.worker is None else "WorkerLost", text)
    losses = after.ledger.incarnations.losses
    if losses and new_worker_losses(before, after):
        known = avoided_nodes(incarnations_of(before).losses, losses[-1].time)
        for node in avoided_nodes(losses, losses[-1].time):
            if node not in known:
                yield PlannedEvent("Warning", "NodeAvoided", f"{avoidance_text(losses, node)}; new pods avoid it")
    lost = after.failure
    if lost is not None and lost.reason == "StateLost" and lost != before.failure:
        yield PlannedEvent("Warning", "StateLost", f"attempt {lost.attempt}: {lost.message}")
    world = after.elastic
    if world is not None and world.formation > max(1, before.elastic.formation if before.elastic else 0):
        text = f"attempt {after.attempt}: generation {world.formation} has {counted(world.ranks, 'rank')}"
        yield PlannedEvent("Normal", "FormationChanged", text)


def _resume_events(before: JobStatus, after: JobStatus) -> tuple[PlannedEvent, ...]:
    """Return an event that names the checkpoint from which an attempt continued, when it becomes known."""
    was = before.progress.started_from if before.progress else None
    now = after.progress.started_from if after.progress else None
    if now is None or now == was:
        return ()
    return (PlannedEvent("Normal", "StartedFrom", f"attempt {after.attempt} continued from {now}"),)


def _auxiliary_pod_events(before: JobStatus, after: JobStatus) -> Iterator[PlannedEvent]:
    """Yield events about ended data workers or evaluators, and about a new number of data workers."""
    known = {ended.uid for ended in before.ledger.ended_pods}
    for ended in after.ledger.ended_pods:
        node = f" on node {ended.node}" if ended.node else ""
        if ended.uid in known:
            continue
        if ended.done:
            yield PlannedEvent("Normal", "EvaluatorSucceeded", f"{ended.pod} succeeded")
            continue
        reason = "EvaluatorFailed" if ended.evaluator else "DataWorkerLost"
        again = "" if after.finished else "; it will be replaced"
        yield PlannedEvent("Warning", reason, f"{ended.pod}{node} {ended.cause}{again}")
    was, now = before.ledger.data_scale, after.ledger.data_scale
    if was is not None and now is not None and was.replicas != now.replicas:
        fraction = before.data_workers.wait_fraction if before.data_workers is not None else None
        why = "" if fraction is None else f"; ranks wait for input {round(100 * fraction)} % of their time"
        yield PlannedEvent(
            "Normal", "DataWorkersScaled", f"from {was.replicas} to {counted(now.replicas, 'data worker')}{why}"
        )


def _has_pods(status: JobStatus) -> bool:
    """Return whether pods of the current attempt exist or existed; false if the API refused all of them."""
    by_role = (status.replica_statuses.launcher, status.replica_statuses.worker)
    return any(pods.active or pods.succeeded or pods.failed for pods in by_role)


def _planned_event(before: Condition | None, after: Condition) -> PlannedEvent | None:
    changed = before is None or (before.status, before.reason) != (after.status, after.reason)
    # A second restart for the same reason is a new event, even without running in between.
    again = after.type == "Restarting" and before is not None and before.message != after.message
    if not (changed or again):
        return None
    warning = PlannedEvent("Warning", after.reason, after.message)
    match after.type, after.status:
        case ("Accepted", "False") | ("Failed", "True"):
            return warning
        case "Running", "True":
            return PlannedEvent("Normal", "Running", after.message) if after.reason == "GangRunning" else warning
        case "Running", "False" if after.reason == "Queued":
            return PlannedEvent("Normal", "Queued", after.message)
        case "Running", "False" if after.reason not in _STAGES:
            return warning
        case "Degraded", "True" if after.reason not in _TOLD_OTHERWISE:
            return PlannedEvent("Warning", "Degraded", after.message)
        case "Degraded", "False" if before is not None and after.reason == "Complete":
            return PlannedEvent("Normal", "WorldComplete", after.message)
        case "InputStalled", "True" if after.reason != "DataWorkersStarting":
            return PlannedEvent("Warning", "InputStalled", after.message)
        case "InputStalled", "False" if _was_stalled(before) and after.reason == "DataWorkersReady":
            return PlannedEvent("Normal", "InputServed", after.message)
        case "LogsNotShipped", "True":
            return PlannedEvent("Warning", "LogsNotShipped", after.message)
        case "LogsNotShipped", "False" if before is not None and before.status == "True":
            return PlannedEvent("Normal", "LogsShipped", "the object store accepts the logs again")
        case "Suspended" | "Succeeded", "True":
            return PlannedEvent("Normal", after.type, after.message)
        case "Queued", "True":
            if after.reason in ("Waiting", "Scaled"):
                return PlannedEvent("Normal", "Queued", after.message)
            return PlannedEvent("Warning", "Requeued", f"{after.reason}: {after.message}")
        case "Suspended" | "Queued", "False" if after.reason in ("Resumed", "Admitted", "Dequeued"):
            return PlannedEvent("Normal", after.reason, after.message)
        case "Restarting", "True":
            return PlannedEvent("Normal" if after.reason == "Scaled" else "Warning", "Restarting", after.message)
    return None


def _was_stalled(before: Condition | None) -> bool:
    return before is not None and before.status == "True" and before.reason != "DataWorkersStarting"
