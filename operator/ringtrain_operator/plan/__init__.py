"""Decisions about a job: a pure function from the job, its observed state and the time to the changes to make."""

from .planning import plan_object
from .result import Plan, PlannedDeletion, PlannedEvent

__all__ = ["Plan", "PlannedDeletion", "PlannedEvent", "plan_object"]
