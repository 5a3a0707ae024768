"""The launcher's pod of an elastic job that is lost: it is made anew within the attempt, and the gang lives on.

Ranks train on without a launcher, and wait for one where their world has to change. The new one learns from
their agents, which wait for it for networking.startTimeoutSeconds. If none has come by then, or if no worker is
left that it could learn from, the gang restarts, which does not count.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from .. import build
from ..build.names import ObjectRef
from ..observe.model import PodView
from ..status.incarnations import LOSSES_KEPT, has_joined, incarnations_of, made_after
from ..status.model import Incarnations, JobStatus, Loss
from ..status.situation import Situation
from .decision import NO_DECISION, Decision, Policy, PolicyResult, Restart
from .incarnations import may_create, notes_end
from .launcher_loss import launcher_loss


def launcher_away(s: Situation) -> PolicyResult:
    """The gang restarts, not counted, when no launcher came that knows its world."""
    since = _away_since(s)
    if since is None:
        return NO_DECISION
    name = build.launcher_name(s.job)
    if not any(_lives(s, pod) for pod in s.workers):
        message = f"attempt {s.attempt}: {name} was lost, and no worker is left that knows the world"
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


def note_launcher(s: Situation, decision: Decision | None) -> JobStatus:
    """The status with what became of the launcher's pod, and with a number for one that is made now.

    As `note_workers`, and after it.
    """
    if notes_end(s, decision):
        return s.status
    notes, cause = incarnations_of(s.status), launcher_loss(s)
    losses = notes.losses
    if cause and notes.launcher_present:
        losses = (*losses, _as_loss(s, notes.launcher, cause))[-LOSSES_KEPT:]
    pod = s.launcher
    noted = notes.model_copy(
        update={
            "losses": losses,
            "launcher_present": pod is not None and not cause and not is_unwanted(s, pod),
            "launcher_lost": _away_since(s),
            **_unknown_sums(s, notes),
        }
    )
    status = s.status.noted(incarnations=noted)
    if not launcher_due(s, status) or _was_refused(s, notes):
        return status
    return status.noted(incarnations=noted.model_copy(update={"launcher": notes.launcher + 1}))


def launcher_due(s: Situation, status: JobStatus | None = None) -> bool:
    """Whether the launcher's pod is made now; `status`: instead of that of `s`."""
    if not may_create(s) or build.launcher_name(s.job) in {pod.name for pod in s.observed.pods}:
        return False
    due = made_after(status or s.status, None)
    return due is None or s.now >= due


def is_unwanted(s: Situation, pod: PodView) -> bool:
    """Whether this pod of the present attempt's launcher is to go: its name is needed."""
    if s.job.spec.elastic is None or pod.role != "launcher":
        return False
    notes = incarnations_of(s.status)
    lost = any(loss.worker is None and loss.incarnation == pod.incarnation for loss in notes.losses)
    return pod.incarnation != notes.launcher or lost


def launcher_wakes_at(s: Situation) -> tuple[datetime, ...]:
    """When to look at the launcher again if nothing happens."""
    due = made_after(s.status, None)
    away = s.launcher is None and not s.status.finished and not s.is_without_pods
    return (due,) if away and due is not None and due > s.now else ()


def _away_since(s: Situation) -> datetime | None:
    """Since when the world has had no launcher that knows it; None: it has one, or there is no world."""
    since = incarnations_of(s.status).launcher_lost
    if not s.has_world:
        return None
    if s.launcher is None or launcher_loss(s) or is_unwanted(s, s.launcher):
        return since or s.now
    knows = s.launcher.finished or (s.report is not None and s.report.phase != "Waiting")
    return None if knows else since


def _lives(s: Situation, pod: PodView) -> bool:
    """Whether a worker runs that has been in the attempt's world, or may have been."""
    return has_joined(s.status, pod.index) and not pod.finished and pod.deletion_time is None


def _unknown_sums(s: Situation, notes: Incarnations) -> dict[str, int]:
    """Lost steps and recoveries of which a launcher that found no notes of the one before knows nothing."""
    known, said = s.status.elastic, (s.report.elastic if s.report is not None else None) or {}
    if known is None or not s.has_world or not said:
        return {}
    told = [said.get(field) for field in ("lostSteps", "recoveries")]
    steps, recoveries = (value if isinstance(value, int) else 0 for value in told)
    if steps >= known.lost_steps - notes.lost_steps and recoveries >= known.recoveries - notes.recoveries:
        return {}
    return {"lost_steps": known.lost_steps, "recoveries": known.recoveries}


def _was_refused(s: Situation, notes: Incarnations) -> bool:
    if notes.launcher == 0 or notes.launcher_present:
        return False
    pod = ObjectRef("Pod", build.launcher_name(s.job))
    return any(refusal.ref == pod or refusal.ref.kind != "Pod" for refusal in s.observed.refusals)


def _as_loss(s: Situation, number: int, cause: str) -> Loss:
    node = (s.launcher.node or None) if s.launcher is not None else None
    name = build.launcher_name(s.job)
    return Loss(pod=name, incarnation=number, attempt=s.attempt, node=node, cause=cause, time=s.now)


LAUNCHER = Policy(launcher_away, note_launcher, launcher_wakes_at)
