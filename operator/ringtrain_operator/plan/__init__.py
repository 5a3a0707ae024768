"""The decisions: from a job, what exists and the time of day, to what is written next. Pure."""

from .planning import plan_object
from .result import Plan, PlannedDeletion, PlannedEvent

__all__ = ["Plan", "PlannedDeletion", "PlannedEvent", "plan_object"]
