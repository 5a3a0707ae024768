"""The group of pods of each attempt, where a gang scheduler places all of them or none."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from ..build.names import ObjectRef
from ..placement.gangs import SCHEDULERS, build_group, group_name, in_group
from ..status.gang import chosen, gang_problem, is_open
from ..status.model import JobStatus
from ..status.situation import Situation
from .decision import Begin, Decision
from .result import Deletion

# How often a job looks whether the gang scheduler that it asks for has come.
LOOK_AGAIN_S = 60


def note_gang(s: Situation, decision: Decision | None) -> JobStatus:
    """The status with who places the attempt's pods. It stays as it is from the attempt's first pod on."""
    begins = isinstance(decision, Begin)  # until then the job was without pods
    return s.status.noted(gang_scheduler=chosen(s).scheduler) if begins or is_open(s) else s.status


def wakes_for_gang(s: Situation) -> tuple[datetime, ...]:
    """When to look again for a gang scheduler that is not there."""
    return (s.now + timedelta(seconds=LOOK_AGAIN_S),) if gang_problem(s) else ()


def missing_group(s: Situation) -> tuple[dict[str, Any], ...]:
    """The present attempt's group, if it is not there: made before the pods."""
    gangs, scheduler = s.observed.gangs, s.status.ledger.gang_scheduler
    if gangs is None or scheduler is None or scheduler not in gangs.served:
        return ()
    version, name = gangs.served[scheduler], group_name(s.job, s.attempt)
    if any((group.ref.name, group.ref.api_version) == (name, version) for group in gangs.groups):
        return ()
    return (build_group(s.job, s.attempt, scheduler, version, s.workers_needed + 1),)


def in_gang(s: Situation, pod: dict[str, Any]) -> dict[str, Any]:
    """The launcher's or a worker's pod as one of its attempt's group, if there is one."""
    gangs, scheduler = s.observed.gangs, s.status.ledger.gang_scheduler
    if scheduler is None:
        return pod
    named = gangs.allowed.get(scheduler, "") if gangs is not None else ""
    return in_group(s.job, pod, s.attempt, scheduler, named or SCHEDULERS[scheduler].scheduler_name)


def unwanted_groups(s: Situation) -> tuple[Deletion, ...]:
    """Groups of attempts that are over, of a job that has ended, and of one that is to have no pods."""
    if s.observed.gangs is None:
        return ()
    return tuple(
        Deletion(group.ref, group.uid)
        for group in s.observed.gangs.groups
        if not group.ending and not _is_present(s, group.ref)
    )


def _is_present(s: Situation, group: ObjectRef) -> bool:
    """Whether it is the group of pods that there are, or are to be."""
    scheduler = s.status.ledger.gang_scheduler
    over = s.status.finished or s.is_without_pods or s.status.ledger.queued_since is not None
    if over or scheduler is None or group.name != group_name(s.job, s.attempt):
        return False
    return group.api_version.startswith(f"{SCHEDULERS[scheduler].api_group}/")
