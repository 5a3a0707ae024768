"""Parts of the status about training progress, the copy of logs, and the start of an attempt.

They come from the launcher's reports and from the pods. They change no more often than the launcher is polled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from ..observe.model import LauncherReport, PodView
from ..observe.pods import is_finite_number, termination_of
from .model import ConditionChange, JobStatus, Progress, StartStatus
from .situation import Situation

# Maximum number of events in one `PUT /pods`. If a thousand pods fail, the first ones show the cause.
MOST_EVENTS: Final = 100
LONGEST_TEXT: Final = 250
# Phases of a start, each with the field that has its end time, in order.
_PARTS: Final = (
    ("queued", "created"),
    ("scheduled", "scheduled"),
    ("prepared", "pulling"),
    ("pulled", "pulled"),
    ("started", "started"),
    ("formed", "formed"),
    ("first step", "first_step"),
)


def progress_fields(s: Situation, input_bound: str) -> dict[str, Any]:
    """Return the status fields `progress` and `progressSummary` of the current attempt; empty if nothing new is known.

    `input_bound`: text about ranks that wait for their data workers.
    """
    new = _final_progress(s)
    if new is None and s.report is not None:
        new = parse_progress(s.report.progress, s.report.last_progress_time)
    if new is None:
        return {}
    parts = [progress_summary(new), input_bound if s.report is not None else ""]
    return {"progress": new, "progress_summary": ", ".join(filter(None, parts))}


def progress_summary(progress: Progress) -> str:
    """Return the progress as a text such as `120/300 (40%)`, or `step 120` if the total is unknown."""
    if not progress.total_steps:
        return f"step {progress.step}"
    return f"{progress.step}/{progress.total_steps} ({100 * progress.step // progress.total_steps}%)"


def not_finite_text(reported: object) -> str:
    """Return `notFinite` of a launcher's progress as a text such as `loss NaN since step 9 (rank 0)`, loss first."""
    values = reported.items() if isinstance(reported, dict) else ()
    return ", ".join(
        f"{name} {value.get('value')} since step {value.get('since')} (rank {value.get('rank')})"
        for name, value in sorted(values, key=lambda item: item[0] != "loss")
        if isinstance(value, dict)
    )[:LONGEST_TEXT]


def _final_progress(s: Situation) -> Progress | None:
    """Return the last progress in the termination message of a launcher that has ended; None without one."""
    if s.launcher is None or not s.launcher.finished:
        return None
    before = s.status.progress
    return parse_progress(
        termination_of(s.launcher, s.attempt).get("progress"), before.last_progress_time if before else None
    )


def parse_progress(raw: object, last: datetime | None) -> Progress | None:
    """Parse the progress that a launcher has reported. Returns None if it does not follow the contract."""
    if not isinstance(raw, dict) or not is_storable_integer(raw.get("step")):
        return None
    metrics = raw.get("metrics")
    return Progress(
        step=raw["step"],
        total_steps=_progress_field(raw, "totalSteps", int),
        epoch=_progress_field(raw, "epoch", int),
        samples_per_second=_progress_field(raw, "samplesPerSecond", float),
        unit=_progress_field(raw, "unit", str),
        loss=_progress_field(raw, "loss", float),
        metrics={str(k): float(v) for k, v in metrics.items() if _is_finite_number(v)}
        if isinstance(metrics, dict)
        else {},
        not_finite=not_finite_text(raw.get("notFinite")) or None,
        started_from=_progress_field(raw, "startedFrom", str),
        last_progress_time=last.replace(microsecond=0) if last is not None else None,
    )


def _progress_field(raw: dict[str, Any], key: str, kind: type) -> Any:
    """Return `raw[key]`; None if its type is not `kind`, because launchers of other versions may report other types."""
    value = raw.get(key)
    if kind is float:
        return float(value) if _is_finite_number(value) else None  # type: ignore[arg-type]
    if kind is int:
        return value if is_storable_integer(value) else None
    return value if isinstance(value, kind) else None


def is_storable_integer(value: object) -> bool:
    """Return whether `value` is an integer that the API can store: an int64 of at least 0."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_finite_number(value: object) -> bool:
    """Return whether `value` is a number that JSON can store: neither NaN, nor infinite, nor too large."""
    return isinstance(value, int | float) and not isinstance(value, bool) and is_finite_number(value)


def logs_not_shipped(s: Situation) -> ConditionChange | None:
    """Return the change of the condition LogsNotShipped (spec.logs.uri); None for no change.

    `s.attempt` is the observed attempt.
    """
    if s.job.spec.logs.uri is None:
        return None
    if s.launcher is not None and s.launcher.finished:
        message = termination_of(s.launcher, s.attempt)
        return _final_shipping_condition(s.attempt, message.get("unshipped")) if message else None
    shipping = s.report.logs.get("shipping") if s.report is not None else None
    if not isinstance(shipping, Mapping):
        return None
    problem = shipping.get("problem")
    if not problem:
        return ConditionChange("LogsNotShipped", "False", "Shipping")
    text = f"the object store refuses the logs; the launcher stores them and sends them later: {problem}"
    return ConditionChange("LogsNotShipped", "True", "StoreUnavailable", text)


def _final_shipping_condition(attempt: int, unshipped: object) -> ConditionChange:
    if not isinstance(unshipped, Mapping):
        return ConditionChange("LogsNotShipped", "False", "Shipped")
    text = (
        f"attempt {attempt} ended with {unshipped.get('pendingBytes')} bytes of logs that are only on its launcher's "
        f"volume: {unshipped.get('problem')}"
    )
    return ConditionChange("LogsNotShipped", "True", "NotShipped", text)


def start_status(status: JobStatus, pods: Iterable[PodView], *, has_begun: bool = False) -> StartStatus:
    """Return the timeline of the current attempt's start, as far as the gang's `pods` show it.

    A phase has ended when all pods of the attempt have completed it. `has_begun`: whether the ranks run; then
    the existing pods are all pods. In an elastic job these may be fewer than the attempt was created with.
    """
    gang = [pod for pod in pods if pod.id.attempt == status.attempt and not pod.outlives_attempts]
    whole = len(gang) if has_begun else status.ledger.attempt_workers + 1
    started = _latest_if_complete([pod.main.started_at for pod in gang], whole)
    ended = last_started(gang) if started is not None else None
    return StartStatus(
        attempt=status.attempt,
        queued=_requested_at(status),
        created=_latest_if_complete([pod.id.created_at for pod in gang], whole),
        scheduled=_latest_if_complete([pod.place.scheduled_at for pod in gang], whole),
        pulling=ended.main.pulling_at if ended else None,
        pulled=ended.main.pulled_at if ended else None,
        started=started,
        pod=ended.id.name if ended else None,
        node=(ended.place.node or None) if ended else None,
    )


def last_started(pods: Iterable[PodView]) -> PodView | None:
    """Return the pod whose main container started last; None if none started."""
    begun = [(pod.main.started_at, pod.id.index, pod) for pod in pods if pod.main.started_at is not None]
    return max(begun, key=lambda one: one[:2])[2] if begun else None


def _latest_if_complete(times: Sequence[datetime | None], whole: int) -> datetime | None:
    """Return the latest of `times` if at least `whole` times are known, otherwise None."""
    known = [time for time in times if time is not None]
    return max(known) if known and len(known) >= whole else None


def _requested_at(status: JobStatus) -> datetime | None:
    """Return when the attempt was requested (ledger.activeSince); None if it followed another attempt."""
    since, before = status.ledger.active_since, status.start
    if before is not None and before.attempt != status.attempt:
        began = before.formed or before.started or before.created
        return since if since is not None and began is not None and since > began else None
    return since


def is_start_unrecorded(status: JobStatus, report: LauncherReport | None) -> bool:
    """Return whether the status must be updated, because the ranks of the current attempt have started."""
    known = status.start is not None and status.start.attempt == status.attempt
    began = report is not None and report.attempt == status.attempt and report.running_since is not None
    return began and not known


def start_fields(s: Situation) -> dict[str, Any]:
    """Return the status field `start`, after the start of the ranks and after the first step; otherwise empty.

    `s.attempt` is the observed attempt.
    """
    report, found = s.report, s.status.start
    if not s.pods:
        return {}
    if found is None or found.attempt != s.attempt:
        has_ended = s.launcher is not None and s.launcher.finished
        if not (has_ended or is_start_unrecorded(s.status, report)):
            return {}
        found = start_status(s.status, s.pods, has_begun=True)
        found = found.model_copy(update={"formed": _whole_seconds(report.running_since if report else None)})
    if found.first_step is None and report is not None and report.first_step_time is not None:
        found = found.model_copy(update={"first_step": _whole_seconds(report.first_step_time)})
    return {"start": found} if found != s.status.start else {}


def _whole_seconds(time: datetime | None) -> datetime | None:
    return None if time is None else time.replace(microsecond=0)


def start_durations(start: StartStatus) -> list[tuple[str, float]]:
    """Return the phases of an attempt's start with their durations in seconds, as far as they are known."""
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


def pods_document(
    status: JobStatus, pods: Sequence[PodView], before: Iterable[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Return the body of `PUT /pods` (docs/contract.md), by which the launcher learns the state of its pods.

    `before`: the events of the previous call. They are repeated, because a pod may be deleted before its events were
    sent.
    """
    known = status.start
    if known is None or known.attempt != status.attempt:
        known = start_status(status, pods)
    gang = [pod for pod in pods if pod.id.attempt == status.attempt and not pod.outlives_attempts]
    events = [*_attempt_events(known), *(event for pod in gang for event in _pod_events(pod, known))]
    events.sort(key=lambda event: event[0])
    now = [
        {"time": time.timestamp(), "kind": kind, "text": text[:LONGEST_TEXT]}
        for time, kind, text in events[:MOST_EVENTS]
    ]
    past = [dict(event) for event in before if event not in now][-MOST_EVENTS:]
    events_sent = sorted([*past, *now], key=lambda event: event["time"])
    return {"events": events_sent, **_worker_images([pod for pod in gang if pod.id.role == "worker"])}


Event = tuple[datetime, str, str]


def _attempt_events(start: StartStatus) -> Iterator[Event]:
    where = f"{start.pod}" + (f" on {start.node}" if start.node else "")
    events = (
        ("Queued", start.queued, "the attempt was requested"),
        ("Created", start.created, "its pods were created"),
        ("Scheduled", start.scheduled, "all pods have a node"),
        ("Pulling", start.pulling, f"{where} pulls its image"),
        ("Pulled", start.pulled, f"{where} has its image"),
        ("Started", start.started, f"all containers run, the last that of {where}"),
    )
    yield from ((time, kind, text) for kind, time, text in events if time is not None)


def _pod_events(pod: PodView, start: StartStatus) -> Iterator[Event]:
    """Yield time, kind and text of one pod's events. A pod created after the attempt's start has its own start."""
    where = f"{pod.id.name}" + (f" on {pod.place.node}" if pod.place.node else "")
    if start.started is not None and pod.id.created_at is not None and pod.id.created_at > start.started:
        which = f"{where}, a replacement" if pod.id.incarnation > 1 else f"{where}, which was added"
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
    """Return image and imageID of the workers, up to three different ones if the image's tag has moved."""
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
