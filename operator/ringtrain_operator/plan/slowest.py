"""The rank that is furthest behind, as the launcher names it: for failures in which no rank has ended."""

from __future__ import annotations

from ..status.model import Failure
from ..status.progress import is_whole
from ..status.situation import Situation


def failure_of_slowest(s: Situation, reason: str, message: str) -> Failure:
    """A failure for `reason` with the slowest rank, its place and the end of its log, as far as they are known."""
    told = s.report.slowest if s.report is not None and s.report.phase == "Running" else None
    failure = Failure(attempt=s.attempt, reason=reason, message=message, time=s.now)
    if not told or not is_whole(told.get("rank")):
        return failure
    pod, node = str(told.get("pod") or ""), str(told.get("node") or "")
    where = " ".join(part for part in (f"in {pod}" if pod else "", f"on {node}" if node else "") if part)
    step = told.get("step")
    at = f"at step {step}" if is_whole(step) else "without a step yet"
    tail = told.get("logTail")
    return failure.model_copy(
        update={
            "rank": told["rank"],
            "pod": pod or None,
            "node": node or None,
            "message": f"{message}; the slowest is rank {told['rank']}{f' {where}' if where else ''}, {at}",
            "log_tail": tuple(str(line) for line in tail) if isinstance(tail, list) else (),
        }
    )
