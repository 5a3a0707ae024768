"""The decisions: from a job, what exists and the time of day, to what is written next. Pure."""

from .observe import owned_by, owner_name, read_report, view_pod
from .observed import Foreign, LauncherReport, ObjectRef, Observed, PodView, Refusal
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
    "owned_by",
    "owner_name",
    "read_report",
    "view_pod",
]
