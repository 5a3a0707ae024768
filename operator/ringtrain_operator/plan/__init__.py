"""The decisions: from a job, what exists and the time of day, to what is written next. Pure."""

from .planning import plan_object
from .result import Deletion, Event, Plan

__all__ = ["Deletion", "Event", "Plan", "plan_object"]
