"""How far training is and where its logs are, from what the launcher says: as often as it is asked, no oftener."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ..observe.pods import is_finite, termination_of
from .model import ConditionChange, Progress
from .situation import Situation


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
        new = _read(s.report.progress, s.report.last_progress_time)
    if new is None:
        return {}
    parts = [summary(new), input_bound if s.report is not None else ""]
    return {"progress": new, "progress_summary": ", ".join(filter(None, parts))}


def summary(progress: Progress) -> str:
    """`120/300 (40%)`, or the step alone when the total is not known."""
    if not progress.total_steps:
        return f"step {progress.step}"
    return f"{progress.step}/{progress.total_steps} ({100 * progress.step // progress.total_steps}%)"


def _final_progress(s: Situation) -> Progress | None:
    """What a launcher that has ended said last: its /status can no longer be read."""
    if s.launcher is None or not s.launcher.finished:
        return None
    before = s.status.progress
    return _read(
        termination_of(s.launcher, s.attempt).get("progress"), before.last_progress_time if before else None
    )


def _read(raw: object, last: datetime | None) -> Progress | None:
    """Progress as the contract words it; None for anything else."""
    if not isinstance(raw, dict) or not is_whole(raw.get("step")):
        return None
    metrics = raw.get("metrics")
    return Progress(
        step=raw["step"],
        total_steps=_of(raw, "totalSteps", int),
        epoch=_of(raw, "epoch", int),
        samples_per_second=_of(raw, "samplesPerSecond", float),
        unit=_of(raw, "unit", str),
        loss=_of(raw, "loss", float),
        metrics={str(k): float(v) for k, v in metrics.items() if _is_number(v)}
        if isinstance(metrics, dict)
        else {},
        started_from=_of(raw, "startedFrom", str),
        last_progress_time=last.replace(microsecond=0) if last is not None else None,
    )


def _of(raw: dict[str, Any], key: str, kind: type) -> Any:
    """`raw[key]` if it is what the contract says; a launcher of another version must not break the status."""
    value = raw.get(key)
    if kind is float:
        return float(value) if _is_number(value) else None  # type: ignore[arg-type]
    if kind is int:
        return value if is_whole(value) else None
    return value if isinstance(value, kind) else None


def is_whole(value: object) -> bool:
    """A whole number that the API can store: int64, and not below 0."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_number(value: object) -> bool:
    """A finite float: JSON of the API has neither NaN nor infinity, and an int may be beyond a float."""
    return isinstance(value, int | float) and not isinstance(value, bool) and is_finite(value)


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
