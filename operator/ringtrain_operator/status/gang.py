"""Which gang scheduler places a job's pods, and why one that the job asks for does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..placement.gangs import DEFAULT_SCHEDULER, SCHEDULERS, scheduler_of
from .situation import Situation

Scheduler = Literal["Kubernetes", "Coscheduling", "Volcano"]


@dataclass(frozen=True)
class GangChoice:
    """Who places all pods of an attempt or none; None: nobody. `problem`: why it is not whom the job asks for."""

    scheduler: Scheduler | None = None
    problem: str = ""


def is_open(s: Situation) -> bool:
    """Whether it is still to be chosen who places the present attempt's pods: none of them exists."""
    return s.attempt > 0 and not (s.pods or s.gang_began or s.is_without_pods or s.status.finished)


def chosen(s: Situation) -> GangChoice:
    """The gang scheduler that the spec, the installation and the cluster lead to."""
    gangs, wanted = s.observed.gangs, s.job.spec.scheduling.gang
    if gangs is None or wanted == "None":
        return GangChoice()
    if wanted == "Auto":
        # Kueue admits whole jobs: a second mechanism that holds pods back has to be asked for.
        return GangChoice() if s.job.queue else GangChoice(_first_served(s))
    if wanted not in gangs.allowed:
        way_out = f"set gangs.{wanted.lower()} in the operator's chart, or choose Auto"
        return GangChoice(
            problem=f"scheduling.gang is {wanted}, which this installation does not allow: {way_out}"
        )
    if wanted not in gangs.served:
        api = SCHEDULERS[wanted]
        kinds = f"PodGroups of {api.api_group} ({' or '.join(api.versions)})"
        return GangChoice(
            problem=f"scheduling.gang is {wanted}, and the API server has no {kinds}: install it, or choose Auto"
        )
    return GangChoice(wanted)


def gang_problem(s: Situation) -> str:
    """Why the present attempt's pods are not made: nobody is there who would place them as the job asks."""
    return chosen(s).problem if is_open(s) else ""


def _first_served(s: Situation) -> Scheduler | None:
    """The first that is there and places pods under the name that the template has, if it has one."""
    gangs, named = s.observed.gangs, scheduler_of(s.job)
    if gangs is None:
        return None
    found: tuple[Scheduler, ...] = ("Kubernetes", "Coscheduling", "Volcano")
    return next(
        (one for one in found if one in gangs.served and named in ("", gangs.allowed[one] or DEFAULT_SCHEDULER)),
        None,
    )
