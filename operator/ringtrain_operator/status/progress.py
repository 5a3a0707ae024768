"""How far training is, where its logs are, and where the start of an attempt went.

From what the launcher says, as often as it is asked, no oftener, and from what becomes of pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from ..observe.model import LauncherReport, PodView
from ..observe.pods import is_observed_finite, termination_of
from .model import ConditionChange, JobStatus, Progress, StartStatus
from .situation import Situation

# What a launcher is told of its pods at a time: of a thousand pods that all fail the first ones say why.
MOST_EVENTS: Final = 100
LONGEST_TEXT: Final = 250
# Each part of a start ends at this time; in their order.
_PARTS: Final = (
    ("queued", "created"),
    ("scheduled", "scheduled"),
    ("prepared", "pulling"),
    ("pulled", "pulled"),
    ("started", "started"),
    ("formed", "formed"),
    ("first step", "first_step"),
)


def progress_fields(s: Situation, succeeded: bool, input_bound: str) -> dict[str, Any]:
    """The fields `progress` and `progressSummary` as far as they are told. `s.attempt` is the one looked at.

    `input_bound`: what is said of ranks that wait for their data workers.

    They are of the newest attempt that has reported; a job that `succeeded` without a report of its last attempt,
    which found nothing left to do, has none: an earlier attempt's are not how far it came.
    """
    new = _final_progress(s)
    if new is None and succeeded and s.launcher is not None and termination_of(s.launcher, s.attempt):
        return {"progress": None, "progress_summary": ""}
    if new is None and s.report is not None:
        new = _read_progress(s.report.progress, s.report.last_progress_time)
    if new is None:
        return {}
    parts = [progress_summary(new), input_bound if s.report is not None else ""]
    return {"progress": new, "progress_summary": ", ".join(filter(None, parts))}


def progress_summary(progress: Progress) -> str:
    """`120/300 (40%)`, or the step alone when the total is not known."""
    if not progress.total_steps:
        return f"step {progress.step}"
    return f"{progress.step}/{progress.total_steps} ({100 * progress.step // progress.total_steps}%)"


def _final_progress(s: Situation) -> Progress | None:
    """What a launcher that has ended said last: its /status can no longer be read."""
    if s.launcher is None or not s.launcher.finished:
        return None
    before = s.status.progress
    return _read_progress(
        termination_of(s.launcher, s.attempt).get("progress"), before.last_progress_time if before else None
    )


def _read_progress(raw: object, last: datetime | None) -> Progress | None:
    """Progress as the contract words it; None for anything else."""
    if not isinstance(raw, dict) or not is_status_whole(raw.get("step")):
        return None
    metrics = raw.get("metrics")
    return Progress(
        step=raw["step"],
        total_steps=_progress_field(raw, "totalSteps", int),
        epoch=_progress_field(raw, "epoch", int),
        samples_per_second=_progress_field(raw, "samplesPerSecond", float),
        unit=_progress_field(raw, "unit", str),
        loss=_progress_field(raw, "loss", float),
        metrics={str(k): float(v) for k, v in metrics.items() if _is_status_number(v)}
        if isinstance(metrics, dict)
        else {},
        started_from=_progress_field(raw, "startedFrom", str),
        last_progress_time=last.replace(microsecond=0) if last is not None else None,
    )


def _progress_field(raw: dict[str, Any], key: str, kind: type) -> Any:
    """`raw[key]` if it is what the contract says; a launcher of another version must not break the status."""
    value = raw.get(key)
    if kind is float:
        return float(value) if _is_status_number(value) else None  # type: ignore[arg-type]
    if kind is int:
        return value if is_status_whole(value) else None
    return value if isinstance(value, kind) else None


def is_status_whole(value: object) -> bool:
    """A whole number that the API can store: int64, and not below 0."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_status_number(value: object) -> bool:
    """A finite float: JSON of the API has neither NaN nor infinity, and an int may be beyond a float."""
    return isinstance(value, int | float) and not isinstance(value, bool) and is_observed_finite(value)


def logs_not_shipped(s: Situation) -> ConditionChange | None:
    """The LogsNotShipped condition of a job with spec.logs.uri; None: nobody knows better than what it says.

    `s.attempt` is the attempt that was looked at.
    """
    if s.job.spec.logs.uri is None:
        return None
    if s.launcher is not None and s.launcher.finished:
        said = termination_of(s.launcher, s.attempt)
        return _at_the_end(s.attempt, said.get("unshipped")) if said else None
    shipping = s.report.logs.get("shipping") if s.report is not None else None
    if not isinstance(shipping, Mapping):
        return None
    problem = shipping.get("problem")
    if not problem:
        return ConditionChange("LogsNotShipped", "False", "Shipping")
    text = f"the object store does not take the logs, which the launcher keeps and sends later: {problem}"
    return ConditionChange("LogsNotShipped", "True", "StoreUnavailable", text)


def _at_the_end(attempt: int, unshipped: object) -> ConditionChange:
    if not isinstance(unshipped, Mapping):
        return ConditionChange("LogsNotShipped", "False", "Shipped")
    text = (
        f"attempt {attempt} ended with {unshipped.get('pendingBytes')} bytes of logs that only its launcher's "
        f"volume has: {unshipped.get('problem')}"
    )
    return ConditionChange("LogsNotShipped", "True", "NotShipped", text)


def start_of(status: JobStatus, pods: Iterable[PodView], *, has_begun: bool = False) -> StartStatus:
    """The start of the present attempt, as far as its gang's `pods` tell.

    A part has ended when all pods that the attempt was made with have come so far; of a gang that `has_begun`,
    which may be smaller in an elastic job, when those have that there are.
    """
    gang = [pod for pod in pods if pod.id.attempt == status.attempt and not pod.outlives_attempts]
    whole = len(gang) if has_begun else status.ledger.attempt_workers + 1
    started = _last_start_time([pod.main.started_at for pod in gang], whole)
    ended = last_started(gang) if started is not None else None
    return StartStatus(
        attempt=status.attempt,
        queued=_asked_for(status),
        created=_last_start_time([pod.id.created_at for pod in gang], whole),
        scheduled=_last_start_time([pod.place.scheduled_at for pod in gang], whole),
        pulling=ended.main.pulling_at if ended else None,
        pulled=ended.main.pulled_at if ended else None,
        started=started,
        pod=ended.id.name if ended else None,
        node=(ended.place.node or None) if ended else None,
    )


def last_started(pods: Iterable[PodView]) -> PodView | None:
    """The pod whose main container started last; None where none has."""
    begun = [(pod.main.started_at, pod.id.index, pod) for pod in pods if pod.main.started_at is not None]
    return max(begun, key=lambda one: one[:2])[2] if begun else None


def _last_start_time(times: Sequence[datetime | None], whole: int) -> datetime | None:
    """The last of `whole` times; None while one of them is not known."""
    known = [time for time in times if time is not None]
    return max(known) if known and len(known) >= whole else None


def _asked_for(status: JobStatus) -> datetime | None:
    """When the attempt was asked for: `activeSince`, unless another attempt has begun since."""
    since, before = status.ledger.active_since, status.start
    if before is not None and before.attempt != status.attempt:
        began = before.formed or before.started or before.created
        return since if since is not None and began is not None and since > began else None
    return since


def is_start_over(status: JobStatus, report: LauncherReport | None) -> bool:
    """Whether the present attempt's ranks were started, and the status does not tell of the start yet."""
    known = status.start is not None and status.start.attempt == status.attempt
    began = report is not None and report.attempt == status.attempt and report.running_since is not None
    return began and not known


def start_fields(s: Situation) -> dict[str, Any]:
    """The field `start`, written once when the ranks were started, and once more with the first step.

    `s.attempt` is the attempt that was looked at.
    """
    report, found = s.report, s.status.start
    if not s.pods:
        return {}
    if found is None or found.attempt != s.attempt:
        has_ended = s.launcher is not None and s.launcher.finished
        if not (has_ended or is_start_over(s.status, report)):
            return {}
        found = start_of(s.status, s.pods, has_begun=True)
        found = found.model_copy(update={"formed": _whole_start_time(report.running_since if report else None)})
    if found.first_step is None and report is not None and report.first_step_time is not None:
        found = found.model_copy(update={"first_step": _whole_start_time(report.first_step_time)})
    return {"start": found} if found != s.status.start else {}


def _whole_start_time(time: datetime | None) -> datetime | None:
    return None if time is None else time.replace(microsecond=0)


def parts_of(start: StartStatus) -> list[tuple[str, float]]:
    """Each part of a start that is known, with its seconds, from one known time to the next."""
    found: list[tuple[str, float]] = []
    before = start.queued
    for name, field in _PARTS:
        time: datetime | None = getattr(start, field)
        if time is None:
            continue
        if before is not None:
            found.append((name, max(0.0, (time - before).total_seconds())))  # clocks of two machines
        before = time if before is None else max(before, time)
    return found


def told_of_pods(
    status: JobStatus, pods: Sequence[PodView], before: Iterable[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """What the attempt's launcher is told of its pods, all of it each time: `PUT /pods` of docs/contract.md.

    `before`: the events of the last time, for a pod may be gone before anybody was told what became of it.
    """
    known = status.start
    if known is None or known.attempt != status.attempt:
        known = start_of(status, pods)
    gang = [pod for pod in pods if pod.id.attempt == status.attempt and not pod.outlives_attempts]
    events = [*_parts_of_start_status(known), *(event for pod in gang for event in _start_of_pod(pod, known))]
    events.sort(key=lambda event: event[0])
    now = [
        {"time": time.timestamp(), "kind": kind, "text": text[:LONGEST_TEXT]}
        for time, kind, text in events[:MOST_EVENTS]
    ]
    past = [dict(event) for event in before if event not in now][-MOST_EVENTS:]
    told = sorted([*past, *now], key=lambda event: event["time"])
    return {"events": told, **_worker_images([pod for pod in gang if pod.id.role == "worker"])}


Event = tuple[datetime, str, str]


def _parts_of_start_status(start: StartStatus) -> Iterator[Event]:
    where = f"{start.pod}" + (f" on {start.node}" if start.node else "")
    said = (
        ("Queued", start.queued, "the attempt was asked for"),
        ("Created", start.created, "its pods were made"),
        ("Scheduled", start.scheduled, "all pods have a node"),
        ("Pulling", start.pulling, f"{where} pulls its image"),
        ("Pulled", start.pulled, f"{where} has its image"),
        ("Started", start.started, f"all containers run, the last that of {where}"),
    )
    yield from ((time, kind, text) for kind, time, text in said if time is not None)


def _start_of_pod(pod: PodView, start: StartStatus) -> Iterator[Event]:
    """What became of one pod: of those that came after the start its own, too."""
    where = f"{pod.id.name}" + (f" on {pod.place.node}" if pod.place.node else "")
    if start.started is not None and pod.id.created_at is not None and pod.id.created_at > start.started:
        which = f"{where}, in the place of one before it" if pod.id.incarnation > 1 else f"{where}, which was added"
        if pod.place.scheduled_at is not None:
            yield pod.place.scheduled_at, "Scheduled", which
        if pod.main.started_at is not None:
            yield pod.main.started_at, "Started", which
    since = pod.place.unschedulable_since or pod.place.scheduled_at or pod.id.created_at
    if pod.wait.reason and since is not None:
        yield since, "Waiting", f"{where}: {pod.wait.reason}"
    if pod.disrupted.reason and pod.disrupted.time is not None:
        yield pod.disrupted.time, "Evicted", f"{where}: {pod.disrupted.reason}"
    elif pod.state.reason and pod.phase == "Failed" and (ended := pod.end.time or pod.deletion_time) is not None:
        yield (
            ended,
            pod.state.reason if pod.state.reason.isalpha() else "Failed",
            f"{where}: {pod.state.message}".rstrip(": "),
        )
    if pod.end.code and pod.end.time is not None:
        yield pod.end.time, "Exited", f"{where}: exit code {pod.end.code} {pod.end.reason}".rstrip()


def _worker_images(workers: Sequence[PodView]) -> dict[str, str]:
    """The workers' image, and the kubelets' words for what it is; of several, for a tag moved, each with a pod."""
    found: dict[str, PodView] = {}
    for pod in sorted(workers, key=lambda pod: pod.id.index):
        if pod.main.image_id:
            found.setdefault(pod.main.image_id, pod)
    if not found:
        return {}
    image = next(iter(found.values())).main.image
    if len(found) == 1:
        return {"image": image, "imageID": next(iter(found))}
    several = ", ".join(f"{image_id} ({pod.id.name})" for image_id, pod in list(found.items())[:3])
    return {"image": image, "imageID": f"not the same in all workers: {several}"}
