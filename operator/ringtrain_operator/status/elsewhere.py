"""What is said here of a job that MultiKueue runs on another cluster; else its status is copied from there."""

from __future__ import annotations

from .model import ConditionChange, JobStatus, with_conditions
from .situation import Situation
from .waiting import queued_because


def kept_here(s: Situation) -> JobStatus:
    """The status with what keeps a job that has not begun from getting to another cluster, if anything does.

    Nobody else says so: without a Workload MultiKueue knows nothing of the job.
    """
    if s.attempt > 0 or s.status.finished or s.job.spec.run_policy.suspend:
        return s.status
    said = _not_handed_over(s)
    if said is None:
        if s.workload is not None or s.status.state is None:
            return s.status
        said = ConditionChange("Running", "False", "WaitingForMultiKueue", "it is to run on another cluster")
    status = with_conditions(
        s.status, (ConditionChange("Accepted", "True", "Valid"), said), s.job.generation, s.now
    )
    new = {"observed_generation": s.job.generation, "state": "Pending", "reason": said.reason}
    return status.model_copy(update=new)


def _not_handed_over(s: Situation) -> ConditionChange | None:
    kueue, view = s.observed.kueue, s.workload
    if not s.job.queue:
        message = (
            f"{s.job.spec.managed_by} is to run the job, and gets to know only jobs in a LocalQueue; name one in "
            "scheduling.queue, or in the label kueue.x-k8s.io/queue-name"
        )
        return ConditionChange("Running", "False", "NoQueue", message)
    if kueue is None or kueue.problem or (view is not None and view.foreign):
        return ConditionChange("Running", "False", "NoWorkload", queued_because(s))
    return None
