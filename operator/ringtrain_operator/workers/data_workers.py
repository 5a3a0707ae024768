"""Data workers: how many a job needs, how many are ready, and their part of the status.

Autoscale derives the number from the time that ranks wait for input. It is a pure function of the recorded scale. While
world and spec stay the same, the number stays above every number with which ranks waited too long. Each such number is
greater than the one before, and between two of them the number only decreases. So the number of changes is bounded,
whatever the load and the measurements are.
"""

import math
from dataclasses import dataclass
from datetime import datetime, timedelta

from ..build import evaluator_name
from ..errors import counted
from ..observe.pods import by_index, is_finite_number
from ..spec.base import format_time
from ..spec.data_workers import Autoscale, DataWorkers
from ..status.decision import Decision, Enqueue, Finish, Halt, Policy
from ..status.ledger import DataScale, EndedPod
from ..status.model import ConditionChange, DataWorkersStatus, JobStatus
from ..status.situation import Situation
from .auxiliary import auxiliary_refusal_text, is_auxiliary_pod_running

# A smaller fraction is visible only in the status field: it costs too little to report.
INPUT_BOUND = 0.05
# Waiting for a minute is not a short stall. Waiting for less than half of the target for five minutes allows fewer.
MORE_AFTER_S = 60
FEWER_AFTER_S = 300


@dataclass(frozen=True)
class MeasuredDataWorkers:
    """Measurement for autoscaling. `complete`: all data workers are ready. `workers`: size of the world."""

    wait_fraction: float | None
    complete: bool
    workers: int


def record_data_workers_scale(s: Situation, decision: Decision | None) -> JobStatus:
    """Record in status.ledger how many data workers the autoscaling requests now."""
    data, scale = s.job.spec.data_workers, s.status.ledger.data_scale
    over = s.finished or s.is_without_pods or isinstance(decision, Halt | Enqueue | Finish)
    if over or s.attempt == 0:
        return s.status
    if data is None or data.autoscale is None:
        return s.status if scale is None else s.status.with_ledger(data_scale=None)
    workers = s.status.ledger.attempt_workers
    if scale is None or scale.asked != data.replicas:
        return s.status.with_ledger(data_scale=initial_scale(data, workers))
    complete = ready_data_workers(s) >= s.wanted_data_workers == scale.replicas
    seen = MeasuredDataWorkers(data_workers_wait_fraction(s), complete, workers)
    return s.status.with_ledger(data_scale=next_data_workers_scale(data.autoscale, scale, seen, s.now))


def data_workers_requeue_times(s: Situation) -> tuple[datetime, ...]:
    """Return the time at which autoscaling changes the number of data workers if nothing else happens."""
    data, scale = s.job.spec.data_workers, s.status.ledger.data_scale
    if data is None or data.autoscale is None or scale is None or s.finished or s.is_without_pods:
        return ()
    due = next_scale_time(data.autoscale, scale)
    return (due,) if due is not None and due > s.now else ()


def initial_scale(data: DataWorkers, workers: int) -> DataScale:
    """Return the initial state of autoscaling: the number of data workers in the spec."""
    return DataScale(replicas=data.replicas, asked=data.replicas, workers=workers)


def next_data_workers_scale(bounds: Autoscale, scale: DataScale, seen: MeasuredDataWorkers, now: datetime) -> DataScale:
    """Return the state of autoscaling after the measurement `seen`. Its `replicas` is the new number of data
    workers."""
    if seen.workers != scale.workers:  # another world: earlier measurements do not apply
        scale = scale.model_copy(update={"workers": seen.workers, "too_few": 0, **_NO_TENDENCY})
    within = min(max(scale.replicas, bounds.min_replicas), bounds.max_replicas)
    if within != scale.replicas:
        return scale.model_copy(update={"replicas": within, **_NO_TENDENCY})
    waited = seen.wait_fraction
    if waited is not None and waited > bounds.target_wait_fraction and seen.complete:
        return _scale_up(bounds, scale, waited, now)
    if waited is not None and waited < bounds.target_wait_fraction / 2:
        return _scale_down(bounds, scale, now)
    return scale.model_copy(update=_NO_TENDENCY)


def next_scale_time(bounds: Autoscale, scale: DataScale) -> datetime | None:
    """Return when the number of data workers changes if the measurements stay the same; None if it does not change."""
    if scale.above_since is not None and scale.replicas < bounds.max_replicas:
        return scale.above_since + timedelta(seconds=MORE_AFTER_S)
    if scale.below_since is not None and _fewest_data_workers(bounds, scale) < scale.replicas:
        return scale.below_since + timedelta(seconds=FEWER_AFTER_S)
    return None


_NO_TENDENCY = {"above_since": None, "below_since": None}


def _scale_up(bounds: Autoscale, scale: DataScale, waited: float, now: datetime) -> DataScale:
    since = scale.above_since or now
    if now - since < timedelta(seconds=MORE_AFTER_S) or scale.replicas >= bounds.max_replicas:
        return scale.model_copy(update={"above_since": since, "below_since": None})
    # The input rate grows with the number of data workers: this number reduces the wait to the target.
    needed = math.ceil(scale.replicas * (1 - bounds.target_wait_fraction) / max(1 - waited, 0.01))
    more = min(max(needed, scale.replicas + 1), 2 * scale.replicas, bounds.max_replicas)
    changed = {"replicas": more, "too_few": max(scale.replicas, scale.too_few), **_NO_TENDENCY}
    return scale.model_copy(update=changed)


def _scale_down(bounds: Autoscale, scale: DataScale, now: datetime) -> DataScale:
    since = scale.below_since or now
    fewest = _fewest_data_workers(bounds, scale)
    if now - since < timedelta(seconds=FEWER_AFTER_S) or scale.replicas <= fewest:
        return scale.model_copy(update={"above_since": None, "below_since": since})
    fewer = max(fewest, scale.replicas - max(1, scale.replicas // 4))
    return scale.model_copy(update={"replicas": fewer, **_NO_TENDENCY})


def _fewest_data_workers(bounds: Autoscale, scale: DataScale) -> int:
    return max(bounds.min_replicas, scale.too_few + 1)


def data_workers_status(s: Situation) -> DataWorkersStatus:
    """Return the status field `dataWorkers`: wanted and ready data workers, and how long ranks wait for data
    workers."""
    before = s.status.data_workers
    previous = before.wait_fraction if before is not None else None
    none_wanted = s.finished or s.is_without_pods or s.attempt == 0
    return DataWorkersStatus(
        desired=0 if none_wanted else s.wanted_data_workers,
        ready=0 if none_wanted else ready_data_workers(s),
        wait_fraction=data_workers_wait_fraction(s) if s.report is not None else previous,
    )


def data_workers_wait_fraction(s: Situation) -> float | None:
    """Return the fraction of time that ranks wait for input; None if the launcher does not report it."""
    reported = (s.report.data if s.report is not None else None) or {}
    value = reported.get("waitFraction")
    if isinstance(value, bool) or not isinstance(value, int | float) or not is_finite_number(value):
        return None
    return round(min(max(float(value), 0.0), 1.0), 2)


def ready_data_workers(s: Situation) -> int:
    """Return how many data workers run and (if the launcher lists them) have registered with the launcher."""
    reported = s.report.data.get("workers") if s.report is not None and s.report.data is not None else None
    wanted = set(s.auxiliary_names)
    running = [
        pod
        for pod in s.auxiliary_pods
        if pod.id.role == "data" and pod.id.name in wanted and is_auxiliary_pod_running(pod)
    ]
    if not isinstance(reported, list):
        return len(running)
    workers = by_index(reported, s.wanted_data_workers)
    return sum(workers.get(pod.id.index, {}).get("registered") is True for pod in running)


def input_bound_text(s: Situation) -> str:
    """Return a text such as `input-bound 23 %` if ranks wait for data workers; otherwise empty."""
    fraction = data_workers_wait_fraction(s)
    return f"input-bound {round(100 * fraction)} %" if fraction is not None and fraction >= INPUT_BOUND else ""


def input_stalled_condition(s: Situation) -> ConditionChange:
    """Return the condition InputStalled of a running job, which is True if no data worker is ready."""
    ready = ready_data_workers(s)
    if ready:
        text = f"{ready} of {counted(s.wanted_data_workers, 'data worker')} ready"
        return ConditionChange("InputStalled", "False", "DataWorkersReady", text)
    reason, why = _stall_reason(s)
    return ConditionChange("InputStalled", "True", reason, f"no data worker is ready, ranks wait for input: {why}")


def _stall_reason(s: Situation) -> tuple[str, str]:
    """Return why no data worker is ready, as one word and as a sentence."""
    names = [name for name in s.auxiliary_names if name != evaluator_name(s.job)]
    if refused := auxiliary_refusal_text(s, names):
        return "CreationRefused", refused
    pods = [pod for pod in s.auxiliary_pods if pod.id.role == "data"]
    for pod in pods:
        if pod.wait.reason:
            return pod.wait.reason, f"{pod.id.name}: {pod.wait.message or pod.wait.reason}"
    running = [pod.id.name for pod in pods if is_auxiliary_pod_running(pod)]
    if running and _were_data_workers_ready(s):
        return (
            "DataWorkersSilent",
            f"{', '.join(running[:3])} run, but the launcher receives nothing from them",
        )
    if running:
        return "DataWorkersStarting", "none has registered with the launcher yet"
    ended = [pod for pod in s.status.ledger.ended_pods if pod.pod in names]
    if ended:
        last = max(ended, key=lambda pod: pod.time)
        return "DataWorkersLost", f"{last.pod} {last.cause}; {_replacement_text(s, last)}"
    return (
        ("DataWorkersLost", "all were lost")
        if _were_data_workers_ready(s)
        else ("DataWorkersStarting", "none runs yet")
    )


def _were_data_workers_ready(s: Situation) -> bool:
    """Return whether data workers have been ready before in the current world."""
    before = s.status.condition("InputStalled")
    return before is not None and before.reason in ("DataWorkersReady", "DataWorkersSilent", "DataWorkersLost")


def _replacement_text(s: Situation, ended: EndedPod) -> str:
    due = ended.next_at
    return f"a new one will be created at {format_time(due)}" if due and s.now < due else "a new one is starting"


AUTOSCALE = Policy(record=record_data_workers_scale, requeue_times=data_workers_requeue_times)
