"""Whether an object store has the job's logs, as the launcher says while it runs and when it ends."""

from __future__ import annotations

from collections.abc import Mapping

from ..observe.pods import termination_of
from .model import ConditionChange
from .situation import Situation


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
