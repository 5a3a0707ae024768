"""Status of an elastic job: its world, and the reason why it has fewer workers than the spec requests."""

from datetime import datetime, timedelta
from typing import Any

from .. import build
from ..errors import counted
from ..observe.pods import is_finite_number
from ..spec.base import format_time
from ..status.model import ConditionChange, ElasticStatus, Failure
from ..status.progress import is_storable_integer
from ..status.situation import Situation
from .incarnations import incarnations_of, is_worker_present, new_worker_losses, next_creation_time


def elastic_fields(s: Situation, seen: Situation) -> dict[str, Any]:
    """Return the status field `elastic`. If ranks have lost the training state, add the field `failure`.

    `seen`: the situation before this round's ledger entries. Values do not decrease within an attempt, although a
    restarted launcher process has to learn the world again.
    """
    lost = sum(loss.worker is not None for loss in new_worker_losses(seen.status, s.status))
    before, notes = s.status.elastic or ElasticStatus(), incarnations_of(s.status)
    reported = (s.report.elastic if s.report is not None else None) or {}
    formation = _integer_field(reported, "formation")
    new = ElasticStatus(
        formation=max(before.formation, formation),
        ranks=_integer_field(reported, "ranks") if formation and formation >= before.formation else before.ranks,
        workers=sum(pod.phase == "Running" and pod.main.ready and not pod.finished for pod in s.workers),
        lost_workers=before.lost_workers + lost,
        lost_steps=max(before.lost_steps, notes.lost_steps + _integer_field(reported, "lostSteps")),
        recoveries=max(before.recoveries, notes.recoveries + _integer_field(reported, "recoveries")),
        last_recovery_seconds=_seconds_or_previous(reported.get("lastRecoverySeconds"), before.last_recovery_seconds),
    )
    return {"elastic": new, **_state_lost_failure(s, reported.get("stateLost"))}


def _state_lost_failure(s: Situation, reported: object) -> dict[str, Failure]:
    """Return the field `failure` if ranks lost the state and continue from a checkpoint; otherwise empty."""
    if not isinstance(reported, dict) or not reported.get("message"):
        return {}
    message, last = str(reported["message"]), s.status.failure
    if last is not None and (last.attempt, last.reason, last.message) == (s.attempt, "StateLost", message):
        return {}
    tail = reported.get("logTail")
    failure = Failure(
        attempt=s.attempt,
        rank=_integer_field(reported, "rank") if is_storable_integer(reported.get("rank")) else None,
        pod=str(reported.get("pod") or "") or None,
        node=str(reported.get("node") or "") or None,
        exit_code=_integer_field(reported, "exitCode") if is_storable_integer(reported.get("exitCode")) else None,
        reason="StateLost",
        message=message,
        log_tail=tuple(map(str, tail)) if isinstance(tail, list) else (),
        time=s.now,
    )
    return {"failure": failure}


def degraded_condition(s: Situation) -> ConditionChange | None:
    """Return the change of the condition Degraded of a running elastic job; None for no change."""
    since = incarnations_of(s.status).launcher_lost
    if since is not None:
        return ConditionChange("Degraded", "True", "LauncherLost", _lost_launcher_text(s, since))
    reported = s.report.elastic if s.report is not None and s.report.phase == "Running" else None
    if reported is None:
        return None
    if s.observed.launcher_refused:
        workers = counted(s.status.ledger.attempt_workers, "worker")
        why = f"{workers} are wanted, but {s.observed.launcher_refused}"
        return ConditionChange("Degraded", "True", "ScaleRefused", why)
    wanted = s.status.ledger.attempt_workers * s.job.spec.slots
    ranks = _integer_field(reported, "ranks")
    if ranks >= wanted and reported.get("degraded") is not True:
        verb = "trains" if ranks == 1 else "train"
        return ConditionChange("Degraded", "False", "Complete", f"{counted(ranks, 'rank')} {verb}")
    reason, why = _incomplete_reason(s)
    return ConditionChange("Degraded", "True", reason, f"{ranks} of {counted(wanted, 'rank')} train: {why}")


def _incomplete_reason(s: Situation) -> tuple[str, str]:
    """Return why the world has fewer workers than requested, as one word and as a sentence."""
    for refusal in s.gang_refusals:
        return "CreationRefused", str(refusal)
    pods = {pod.id.index: pod for pod in s.workers}
    absent = [
        worker
        for worker in range(s.status.ledger.attempt_workers)
        if worker not in pods or pods[worker].phase != "Running" or not is_worker_present(s.status, worker)
    ]
    if not absent:
        return "WorkersJoining", "all workers run, but some have not joined yet"
    first = absent[0]
    others = f"; {counted(len(absent) - 1, 'more worker')} missing" if len(absent) > 1 else ""
    pod = pods.get(first)
    if pod is not None and pod.wait.reason and is_worker_present(s.status, first):
        return pod.wait.reason, f"{pod.id.name}: {pod.wait.message or pod.wait.reason}{others}"
    name, loss = build.worker_name(s.job, first), _last_loss_text(s, first)
    if loss is None:
        return "WorkersJoining", f"{name} does not run yet{others}"
    due = next_creation_time(s.status, first)
    if not is_worker_present(s.status, first) and due is not None and s.now < due:
        return "BackOff", f"{name} {loss}; a new one will be created at {format_time(due)}{others}"
    return "WorkerLost", f"{name} {loss}; a new one is starting{others}"


def _lost_launcher_text(s: Situation, since: datetime) -> str:
    """Return a text about a lost launcher: cause, why there is no new one, how long ranks wait."""
    name, due = build.launcher_name(s.job), next_creation_time(s.status, None)
    until = since + timedelta(seconds=s.job.spec.networking.start_timeout_seconds)
    next_one = "a new one is starting"
    if s.launcher is None and due is not None and s.now < due:
        next_one = f"a new one will be created at {format_time(due)}"
    if s.launcher is not None and s.launcher.wait.reason:
        next_one = f"the new one waits: {s.launcher.wait.message or s.launcher.wait.reason}"
    for refusal in s.gang_refusals:
        next_one = str(refusal)
    return (
        f"{name} {_last_loss_text(s, None) or 'does not exist'}; {next_one}; ranks continue to train; if their world "
        f"has to change they wait for it until {format_time(until)}"
    )


def _last_loss_text(s: Situation, worker: int | None) -> str | None:
    """Return why `worker` (None: the launcher) was last lost in this attempt; None if it was not lost."""
    losses = incarnations_of(s.status).losses
    found = [loss for loss in losses if loss.worker == worker and loss.attempt == s.attempt]
    if not found:
        return None
    node = f"on node {found[-1].node} " if found[-1].node else ""
    return f"{node}{found[-1].cause}"


def _integer_field(reported: dict[str, Any], field: str) -> int:
    value = reported.get(field)
    return value if isinstance(value, int) and is_storable_integer(value) else 0


def _seconds_or_previous(value: object, before: float | None) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not is_finite_number(value):
        return before
    return round(float(value), 3)
