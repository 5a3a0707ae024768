"""Loss of an elastic job's launcher, and its replacement within the attempt.

The launcher's pod is replaced in the same way while the gang continues. Ranks train without a launcher, and wait for
one when their world has to change. The new one learns the world from their agents, which wait for it for
networking.startTimeoutSeconds. If none has come by then, or if no worker is left, the gang restarts, which is not
counted.
"""

from datetime import datetime, timedelta

from .. import build
from ..build import RESTARTED_CODES
from ..build.names import ObjectRef
from ..observe.model import PodView
from ..observe.pods import termination_of
from ..status.decision import NO_DECISION, Decision, Policy, PolicyResult, Restart
from ..status.ledger import Incarnations
from ..status.model import JobStatus
from ..status.situation import Situation
from .gang import gang_pod_disruption
from .incarnations import MAX_LOSSES, has_joined, incarnations_of, is_recording_over, loss_record, next_creation_time

# Time for a kubelet to restart a killed launcher: its first backoff is 10 s.
LAUNCHER_BACK_S = 60


def is_attempt_ending(s: Situation) -> bool:
    launcher_ended = s.launcher is not None and s.launcher.finished and not launcher_loss(s)
    return launcher_ended or (s.report is not None and s.report.phase in ("Succeeded", "Failed"))


def may_create_workers(s: Situation) -> bool:
    """Return whether the gang's pods may be created now. Queues, backoffs and old pods delay them."""
    if s.stale_pods or s.observed.foreign or is_attempt_ending(s) or s.status.ledger.queued_since is not None:
        return False
    if any(placement.holds for placement in s.placements):
        return False
    start = s.status.ledger.restart_not_before
    return start is None or s.now >= start


def launcher_absence(s: Situation) -> PolicyResult:
    """Restart the gang, uncounted, if its launcher is lost and no other launcher can take over the world.

    This is so if no running worker knows the world, or if no launcher has learned the world within
    networking.startTimeoutSeconds.
    """
    since = _without_launcher_since(s)
    if since is None:
        return NO_DECISION
    name = build.launcher_name(s.job)
    if not any(_is_worker_pod_alive(s, pod) for pod in s.workers):
        message = f"attempt {s.attempt}: {name} was lost, and no running worker knows the world"
        return PolicyResult(Restart("Disrupted", message))
    limit_s = s.job.spec.networking.start_timeout_seconds
    due = since + timedelta(seconds=limit_s)
    if s.now < due:
        return PolicyResult(requeue_at=due)
    message = (
        f"attempt {s.attempt}: {name} was lost, and no new one has learned the world within {limit_s} s "
        "(networking.startTimeoutSeconds)"
    )
    return PolicyResult(Restart("Disrupted", message))


def record_launcher(s: Situation, decision: Decision | None) -> JobStatus:
    """Record a lost launcher's pod in status.ledger, and the number of the pod that is created in this reconcile.

    Runs after `record_workers`.
    """
    if is_recording_over(s, decision):
        return s.status
    notes, cause = incarnations_of(s.status), launcher_loss(s)
    losses = notes.losses
    if cause and notes.launcher_present:
        losses = (*losses, loss_record(s, None, s.launcher, cause))[-MAX_LOSSES:]
    pod = s.launcher
    updated = notes.model_copy(
        update={
            "losses": losses,
            "launcher_present": pod is not None and not cause and not is_unwanted_launcher(s, pod),
            "launcher_lost": _without_launcher_since(s),
            **_uncounted_sums(s, notes),
        }
    )
    status = s.status.with_ledger(incarnations=updated)
    if not is_launcher_due(s, status) or _launcher_was_refused(s, notes):
        return status
    return status.with_ledger(incarnations=updated.model_copy(update={"launcher": notes.launcher + 1}))


def is_launcher_due(s: Situation, status: JobStatus | None = None) -> bool:
    """Return whether to create the launcher's pod now. `status`: used instead of the status in `s`."""
    if not may_create_workers(s) or build.launcher_name(s.job) in {pod.id.name for pod in s.observed.pods}:
        return False
    due = next_creation_time(status or s.status, None)
    return due is None or s.now >= due


def is_unwanted_launcher(s: Situation, pod: PodView) -> bool:
    """Return whether to delete this launcher's pod of the current attempt, so that a new one can be created."""
    if pod.id.role != "launcher":
        return False
    notes = incarnations_of(s.status)
    lost = any(loss.worker is None and loss.incarnation == pod.id.incarnation for loss in notes.losses)
    return pod.id.incarnation != notes.launcher or lost


def launcher_requeue_times(s: Situation) -> tuple[datetime, ...]:
    """Return the time at which a new pod of the launcher may be created; empty if none is planned."""
    due = next_creation_time(s.status, None)
    away = s.launcher is None and not s.finished and not s.is_without_pods
    return (due,) if away and due is not None and due > s.now else ()


def _without_launcher_since(s: Situation) -> datetime | None:
    """Return since when no launcher has managed the attempt's world; None if one does, or if there is no world."""
    since = incarnations_of(s.status).launcher_lost
    if not s.has_world:
        return None
    if s.launcher is None or launcher_loss(s) or is_unwanted_launcher(s, s.launcher):
        return since or s.now
    knows = s.launcher.finished or (s.report is not None and s.report.phase != "Waiting")
    return None if knows else since


def _is_worker_pod_alive(s: Situation, pod: PodView) -> bool:
    """Return whether a worker's pod runs whose agent has registered, so that it may know the world."""
    return has_joined(s.status, pod.id.index) and not pod.finished and pod.deletion_time is None


def _uncounted_sums(s: Situation, notes: Incarnations) -> dict[str, int]:
    """Return the totals of lost steps and recoveries up to now, if the current launcher counts both from 0 again.

    The totals replace those in `notes`. Otherwise, returns an empty dict.
    """
    known, reported = s.status.elastic, (s.report.elastic if s.report is not None else None) or {}
    if known is None or not s.has_world or not reported:
        return {}
    counts = [reported.get(field) for field in ("lostSteps", "recoveries")]
    steps, recoveries = (value if isinstance(value, int) else 0 for value in counts)
    if steps >= known.lost_steps - notes.lost_steps and recoveries >= known.recoveries - notes.recoveries:
        return {}
    return {"lost_steps": known.lost_steps, "recoveries": known.recoveries}


def _launcher_was_refused(s: Situation, notes: Incarnations) -> bool:
    if notes.launcher == 0 or notes.launcher_present:
        return False
    pod = ObjectRef("Pod", build.launcher_name(s.job))
    return any(refusal.ref == pod or refusal.ref.kind != "Pod" for refusal in s.observed.refusals)


def launcher_restart_deadline(s: Situation, launcher: PodView) -> datetime | None:
    """Return until when the kubelet may restart a killed launcher in its pod; None if it will not.

    The restarted launcher learns the world from the agents. A pod whose other containers run stays Running even if the
    kubelet does not support restart rules.
    """
    killed = launcher.end.code in RESTARTED_CODES and not termination_of(launcher, s.attempt)
    if s.job.spec.elastic is None or not killed or launcher.phase != "Running":
        return None
    due = (launcher.end.time or s.now) + timedelta(seconds=LAUNCHER_BACK_S)
    return due if s.now < due else None


def launcher_loss(s: Situation) -> str:
    """Return why the launcher's pod is lost; empty if the pod is not lost, or if the pod's end ends the attempt.

    A launcher whose termination message has the attempt's outcome is not lost, whatever happens to its pod.
    """
    pod, notes = s.launcher, incarnations_of(s.status)
    if not s.has_world:
        return ""
    if pod is None:
        return "no longer exists" if notes.launcher_present else ""
    outcome = termination_of(pod, s.attempt).get("outcome")
    if outcome in ("Succeeded", "Failed") or launcher_restart_deadline(s, pod) is not None:
        return ""
    disruption = gang_pod_disruption(pod)
    if disruption or not pod.finished:
        return disruption
    if outcome == "Stopped":
        return "was stopped by a signal"
    why = f" ({pod.end.reason})" if pod.end.reason not in ("", "Error") else ""
    return f"was killed, exit code {pod.end.code}{why}" if pod.end.code in RESTARTED_CODES else ""


LAUNCHER = Policy(launcher_absence, record_launcher, launcher_requeue_times, elastic=True)
