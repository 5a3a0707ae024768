"""Data workers: how many a job needs, how many serve, and what the status says of them.

The number follows from how long ranks wait for input, by a pure function of its notes. As long as world and spec
are the same, the number always stays above one with which ranks waited too long. Each such number is greater than
the one before, and between two of them the number of data workers only falls. So there are only so many changes,
however the load and the measurements behave.
"""

import math
from dataclasses import dataclass
from datetime import datetime, timedelta

from ..build import evaluator_name
from ..observe.pods import by_index, is_observed_finite
from ..spec.base import format_time
from ..spec.data_workers import Autoscale, DataWorkers
from ..status.decision import Decision, Enqueue, Finish, Halt, Policy
from ..status.model import ConditionChange, DataScale, DataWorkersStatus, EndedPod, JobStatus
from ..status.situation import Situation, counted
from .lasting import lasting_pod_runs, refused_lasting_pods

# Less than this is said nowhere but in figures: it costs nothing that a person would look for.
INPUT_BOUND = 0.05
# A minute of waiting is no hiccup; what waits less than half of the target for five minutes may have too many.
MORE_AFTER_S = 60
FEWER_AFTER_S = 300


@dataclass(frozen=True)
class MeasuredDataWorkers:
    """What is known now. `complete`: all data workers that are wanted take part. `workers`: of the world."""

    wait_fraction: float | None
    complete: bool
    workers: int


def note_data_workers_scale(s: Situation, decision: Decision | None) -> JobStatus:
    """The status with how many data workers autoscale wants now."""
    data, scale = s.job.spec.data_workers, s.status.ledger.data_scale
    over = s.finished or s.is_without_pods or isinstance(decision, Halt | Enqueue | Finish)
    if over or s.attempt == 0:
        return s.status
    if data is None or data.autoscale is None:
        return s.status if scale is None else s.status.noted(data_scale=None)
    workers = s.status.ledger.attempt_workers
    if scale is None or scale.asked != data.replicas:
        return s.status.noted(data_scale=first_scale(data, workers))
    complete = ready_data_workers(s) >= s.wanted_data_workers == scale.replicas
    seen = MeasuredDataWorkers(data_workers_wait_fraction(s), complete, workers)
    return s.status.noted(data_scale=next_data_workers_scale(data.autoscale, scale, seen, s.now))


def data_workers_wake_at(s: Situation) -> tuple[datetime, ...]:
    """When the number may change if nothing happens."""
    data, scale = s.job.spec.data_workers, s.status.ledger.data_scale
    if data is None or data.autoscale is None or scale is None or s.finished or s.is_without_pods:
        return ()
    due = wakes_at(data.autoscale, scale)
    return (due,) if due is not None and due > s.now else ()


def first_scale(data: DataWorkers, workers: int) -> DataScale:
    """The notes to begin with."""
    return DataScale(replicas=data.replicas, asked=data.replicas, workers=workers)


def next_data_workers_scale(bounds: Autoscale, scale: DataScale, seen: MeasuredDataWorkers, now: datetime) -> DataScale:
    """The notes after a look at `now`; `replicas` in them is what is wanted from now on."""
    if seen.workers != scale.workers:  # another world: what was learned does not hold
        scale = scale.model_copy(update={"workers": seen.workers, "too_few": 0, **_NO_TENDENCY})
    within = min(max(scale.replicas, bounds.min_replicas), bounds.max_replicas)
    if within != scale.replicas:
        return scale.model_copy(update={"replicas": within, **_NO_TENDENCY})
    waited = seen.wait_fraction
    if waited is not None and waited > bounds.target_wait_fraction and seen.complete:
        return _are_data_workers_too_slow(bounds, scale, waited, now)
    if waited is not None and waited < bounds.target_wait_fraction / 2:
        return _are_data_workers_fast_enough(bounds, scale, now)
    return scale.model_copy(update=_NO_TENDENCY)


def wakes_at(bounds: Autoscale, scale: DataScale) -> datetime | None:
    """When the number may change if what is measured stays as it is."""
    if scale.above_since is not None and scale.replicas < bounds.max_replicas:
        return scale.above_since + timedelta(seconds=MORE_AFTER_S)
    if scale.below_since is not None and _fewest_data_workers(bounds, scale) < scale.replicas:
        return scale.below_since + timedelta(seconds=FEWER_AFTER_S)
    return None


_NO_TENDENCY = {"above_since": None, "below_since": None}


def _are_data_workers_too_slow(bounds: Autoscale, scale: DataScale, waited: float, now: datetime) -> DataScale:
    since = scale.above_since or now
    if now - since < timedelta(seconds=MORE_AFTER_S) or scale.replicas >= bounds.max_replicas:
        return scale.model_copy(update={"above_since": since, "below_since": None})
    # Input comes at a rate that grows with the data workers: so many bring the wait down to the target.
    needed = math.ceil(scale.replicas * (1 - bounds.target_wait_fraction) / max(1 - waited, 0.01))
    more = min(max(needed, scale.replicas + 1), 2 * scale.replicas, bounds.max_replicas)
    changed = {"replicas": more, "too_few": max(scale.replicas, scale.too_few), **_NO_TENDENCY}
    return scale.model_copy(update=changed)


def _are_data_workers_fast_enough(bounds: Autoscale, scale: DataScale, now: datetime) -> DataScale:
    since = scale.below_since or now
    fewest = _fewest_data_workers(bounds, scale)
    if now - since < timedelta(seconds=FEWER_AFTER_S) or scale.replicas <= fewest:
        return scale.model_copy(update={"above_since": None, "below_since": since})
    fewer = max(fewest, scale.replicas - max(1, scale.replicas // 4))
    return scale.model_copy(update={"replicas": fewer, **_NO_TENDENCY})


def _fewest_data_workers(bounds: Autoscale, scale: DataScale) -> int:
    return max(bounds.min_replicas, scale.too_few + 1)


def data_workers_status(s: Situation) -> DataWorkersStatus:
    """The field `dataWorkers`."""
    before = s.status.data_workers
    kept = before.wait_fraction if before is not None else None
    none_wanted = s.finished or s.is_without_pods or s.attempt == 0
    return DataWorkersStatus(
        desired=0 if none_wanted else s.wanted_data_workers,
        ready=0 if none_wanted else ready_data_workers(s),
        wait_fraction=data_workers_wait_fraction(s) if s.report is not None else kept,
    )


def data_workers_wait_fraction(s: Situation) -> float | None:
    """Part of its time that a rank waits for input, as the launcher says now; None: it does not say."""
    said = (s.report.data if s.report is not None else None) or {}
    value = said.get("waitFraction")
    if isinstance(value, bool) or not isinstance(value, int | float) or not is_observed_finite(value):
        return None
    return round(min(max(float(value), 0.0), 1.0), 2)


def ready_data_workers(s: Situation) -> int:
    """Data workers that run and, as far as the launcher tells, have registered."""
    said = s.report.data.get("workers") if s.report is not None and s.report.data is not None else None
    wanted = set(s.lasting_names)
    running = [
        pod for pod in s.lasting_pods if pod.id.role == "data" and pod.id.name in wanted and lasting_pod_runs(pod)
    ]
    if not isinstance(said, list):
        return len(running)
    workers = by_index(said, s.wanted_data_workers)
    return sum(workers.get(pod.id.index, {}).get("registered") is True for pod in running)


def input_bound(s: Situation) -> str:
    """`input-bound 23 %` of a job whose ranks wait for their data workers; else empty."""
    fraction = data_workers_wait_fraction(s)
    return f"input-bound {round(100 * fraction)} %" if fraction is not None and fraction >= INPUT_BOUND else ""


def data_workers_stalled(s: Situation) -> ConditionChange:
    """The InputStalled condition of a job with data workers whose gang runs."""
    ready = ready_data_workers(s)
    if ready:
        text = f"{ready} of {counted(s.wanted_data_workers, 'data worker')} ready"
        return ConditionChange("InputStalled", "False", "DataWorkersReady", text)
    reason, why = _why_no_data_workers(s)
    return ConditionChange("InputStalled", "True", reason, f"no data worker is ready, ranks wait for input: {why}")


def _why_no_data_workers(s: Situation) -> tuple[str, str]:
    """What keeps data workers away, in one word and in a sentence."""
    names = [name for name in s.lasting_names if name != evaluator_name(s.job)]
    if refused := refused_lasting_pods(s, names):
        return "CreationRefused", refused
    pods = [pod for pod in s.lasting_pods if pod.id.role == "data"]
    for pod in pods:
        if pod.wait.reason:
            return pod.wait.reason, f"{pod.id.name}: {pod.wait.message or pod.wait.reason}"
    running = [pod.id.name for pod in pods if lasting_pod_runs(pod)]
    if running and _were_data_workers_ready(s):
        return (
            "DataWorkersSilent",
            f"{', '.join(running[:3])} run, and the launcher hears nothing of them any more",
        )
    if running:
        return "DataWorkersStarting", "none has registered with the launcher yet"
    ended = [note for note in s.status.ledger.ended_pods if note.pod in names]
    if ended:
        last = max(ended, key=lambda note: note.time)
        return "DataWorkersLost", f"{last.pod} {last.cause}; {_next_data_worker(s, last)}"
    return (
        ("DataWorkersLost", "all are gone") if _were_data_workers_ready(s) else ("DataWorkersStarting", "none runs yet")
    )


def _were_data_workers_ready(s: Situation) -> bool:
    """Whether the present world has had data workers."""
    before = s.status.condition("InputStalled")
    return before is not None and before.reason in ("DataWorkersReady", "DataWorkersSilent", "DataWorkersLost")


def _next_data_worker(s: Situation, ended: EndedPod) -> str:
    due = ended.next_at
    return f"a new one is made at {format_time(due)}" if due and s.now < due else "a new one is on its way"


AUTOSCALE = Policy(note=note_data_workers_scale, wakes=data_workers_wake_at)
