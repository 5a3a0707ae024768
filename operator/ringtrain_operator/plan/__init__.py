"""The decisions: from a job, what exists and the time of day, to what is written next. Pure."""

from ..observe import (
    Foreign,
    LauncherReport,
    ObjectRef,
    Observed,
    PodView,
    Refusal,
    owned_by,
    owner_name,
    read_report,
    view_pod,
)
from .decide import plan, plan_object
from .objects import companion_refs
from .result import Deletion, Event, Plan

__all__ = [
    "Deletion",
    "Event",
    "Foreign",
    "LauncherReport",
    "ObjectRef",
    "Observed",
    "Plan",
    "PodView",
    "Refusal",
    "companion_refs",
    "owned_by",
    "owner_name",
    "plan",
    "plan_object",
    "read_report",
    "view_pod",
]
