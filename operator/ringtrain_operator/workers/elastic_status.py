"""What the status of an elastic job says of its world, and of why that is smaller than it should be."""

from datetime import datetime, timedelta
from typing import Any

from .. import build
from ..observe.pods import is_observed_finite
from ..spec.base import format_time
from ..status.model import (
    ConditionChange,
    ElasticStatus,
    Failure,
)
from ..status.progress import is_status_whole
from ..status.situation import Situation, counted
from .replacing import is_worker_present, new_worker_losses, worker_incarnations_of, worker_made_after


def elastic_fields(s: Situation, seen: Situation) -> dict[str, Any]:
    """The field `elastic`, and a new `failure` where the state was lost. `seen`: before this look's notes.

    Nothing in it goes back within an attempt: a launcher whose process came back has to learn the world again.
    """
    lost = sum(loss.worker is not None for loss in new_worker_losses(seen.status, s.status))
    before, notes = s.status.elastic or ElasticStatus(), worker_incarnations_of(s.status)
    said = (s.report.elastic if s.report is not None else None) or {}
    formation = _whole_report_field(said, "formation")
    new = ElasticStatus(
        formation=max(before.formation, formation),
        ranks=_whole_report_field(said, "ranks") if formation and formation >= before.formation else before.ranks,
        workers=sum(pod.phase == "Running" and pod.main.ready and not pod.finished for pod in s.workers),
        lost_workers=before.lost_workers + lost,
        lost_steps=max(before.lost_steps, notes.lost_steps + _whole_report_field(said, "lostSteps")),
        recoveries=max(before.recoveries, notes.recoveries + _whole_report_field(said, "recoveries")),
        last_recovery_seconds=_elastic_seconds(said.get("lastRecoverySeconds"), before.last_recovery_seconds),
    )
    return {"elastic": new, **_elastic_workers_lost_state(s, said.get("stateLost"))}


def _elastic_workers_lost_state(s: Situation, said: object) -> dict[str, Failure]:
    """The failure of a training that begins at its checkpoint within the attempt; empty without a new one."""
    if not isinstance(said, dict) or not said.get("message"):
        return {}
    message, last = str(said["message"]), s.status.failure
    if last is not None and (last.attempt, last.reason, last.message) == (s.attempt, "StateLost", message):
        return {}
    tail = said.get("logTail")
    failure = Failure(
        attempt=s.attempt,
        rank=_whole_report_field(said, "rank") if is_status_whole(said.get("rank")) else None,
        pod=str(said.get("pod") or "") or None,
        node=str(said.get("node") or "") or None,
        exit_code=_whole_report_field(said, "exitCode") if is_status_whole(said.get("exitCode")) else None,
        reason="StateLost",
        message=message,
        log_tail=tuple(map(str, tail)) if isinstance(tail, list) else (),
        time=s.now,
    )
    return {"failure": failure}


def degraded_elastic_world(s: Situation) -> ConditionChange | None:
    """The Degraded condition of an elastic job that runs; None: nobody knows better than what it says already."""
    since = worker_incarnations_of(s.status).launcher_lost
    if since is not None:
        return ConditionChange("Degraded", "True", "LauncherLost", _elastic_workers_without_launcher(s, since))
    said = s.report.elastic if s.report is not None and s.report.phase == "Running" else None
    if said is None:
        return None
    if s.observed.launcher_refused:
        workers = counted(s.status.ledger.attempt_workers, "worker")
        why = f"the launcher was told that {workers} are wanted, and {s.observed.launcher_refused}"
        return ConditionChange("Degraded", "True", "ScaleRefused", why)
    wanted = s.status.ledger.attempt_workers * s.job.spec.slots
    ranks = _whole_report_field(said, "ranks")
    if ranks >= wanted and said.get("degraded") is not True:
        verb = "trains" if ranks == 1 else "train"
        return ConditionChange("Degraded", "False", "Complete", f"{counted(ranks, 'rank')} {verb}")
    reason, why = _why_fewer_workers(s)
    return ConditionChange("Degraded", "True", reason, f"{ranks} of {counted(wanted, 'rank')} train: {why}")


def _why_fewer_workers(s: Situation) -> tuple[str, str]:
    """What keeps the world from being complete, in one word and in a sentence."""
    for refusal in s.gang_refusals:
        return "CreationRefused", f"the API refused {refusal.ref} ({refusal.reason}): {refusal.message}"
    pods = {pod.id.index: pod for pod in s.workers}
    absent = [
        worker
        for worker in range(s.status.ledger.attempt_workers)
        if worker not in pods or pods[worker].phase != "Running" or not is_worker_present(s.status, worker)
    ]
    if not absent:
        return "WorkersJoining", "all workers run, and some have not joined yet"
    first = absent[0]
    others = f"; {counted(len(absent) - 1, 'more worker')} missing" if len(absent) > 1 else ""
    pod = pods.get(first)
    if pod is not None and pod.wait.reason and is_worker_present(s.status, first):
        return pod.wait.reason, f"{pod.id.name}: {pod.wait.message or pod.wait.reason}{others}"
    name, loss = build.worker_name(s.job, first), _last_loss(s, first)
    if loss is None:
        return "WorkersJoining", f"{name} does not run yet{others}"
    due = worker_made_after(s.status, first)
    if not is_worker_present(s.status, first) and due is not None and s.now < due:
        return "BackOff", f"{name} {loss}; a new one is made at {format_time(due)}{others}"
    return "WorkerLost", f"{name} {loss}; a new one is on its way{others}"


def _elastic_workers_without_launcher(s: Situation, since: datetime) -> str:
    """What became of the launcher's pod, what keeps the next one, and until when ranks have patience."""
    name, due = build.launcher_name(s.job), worker_made_after(s.status, None)
    until = since + timedelta(seconds=s.job.spec.networking.start_timeout_seconds)
    next_one = "a new one is on its way"
    if s.launcher is None and due is not None and s.now < due:
        next_one = f"a new one is made at {format_time(due)}"
    if s.launcher is not None and s.launcher.wait.reason:
        next_one = f"the new one waits: {s.launcher.wait.message or s.launcher.wait.reason}"
    for refusal in s.gang_refusals:
        next_one = f"the API refused {refusal.ref} ({refusal.reason}): {refusal.message}"
    return (
        f"{name} {_last_loss(s, None) or 'is not there'}; {next_one}; ranks train on, and wait for it at a change "
        f"of their world, until {format_time(until)}"
    )


def _last_loss(s: Situation, worker: int | None) -> str | None:
    """What became of the last pod of `worker` (None: the launcher), if that was lost in this attempt."""
    losses = worker_incarnations_of(s.status).losses
    found = [loss for loss in losses if loss.worker == worker and loss.attempt == s.attempt]
    if not found:
        return None
    node = f"on node {found[-1].node} " if found[-1].node else ""
    return f"{node}{found[-1].cause}"


def _whole_report_field(said: dict[str, Any], field: str) -> int:
    value = said.get(field)
    return value if isinstance(value, int) and is_status_whole(value) else 0


def _elastic_seconds(value: object, before: float | None) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not is_observed_finite(value):
        return before
    return round(float(value), 3)
