"""Kubernetes' conditions: set one, keep its transition time unless it turned."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from .model import Condition, ConditionStatus, ConditionType, JobStatus

ORDER: tuple[ConditionType, ...] = ("Accepted", "Running", "Suspended", "Restarting", "Succeeded", "Failed")


@dataclass(frozen=True)
class ConditionChange:
    """A condition to set."""

    type: ConditionType
    status: ConditionStatus
    reason: str
    message: str = ""


def with_conditions(
    status: JobStatus, changes: tuple[ConditionChange, ...], generation: int, now: datetime
) -> JobStatus:
    """`status` with each condition of `changes` set; of two for one type the later one counts."""
    conditions: dict[ConditionType, Condition] = {c.type: c for c in status.conditions}
    for one in changes:
        before = status.condition(one.type)
        turned = before is None or before.status != one.status
        conditions[one.type] = Condition(
            type=one.type,
            status=one.status,
            reason=one.reason,
            message=one.message,
            last_transition_time=now if before is None or turned else before.last_transition_time,
            observed_generation=generation,
        )
    return status.model_copy(update={"conditions": tuple(conditions[t] for t in ORDER if t in conditions)})
