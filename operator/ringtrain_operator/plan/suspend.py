"""Starting, suspending and resuming."""

from __future__ import annotations

from ..placement.kueue.workload import is_prebuilt
from ..spec.job import comparable
from ..status.situation import Situation
from .decision import NO_DECISION, Begin, Enqueue, Halt, PolicyResult


def suspension(s: Situation) -> PolicyResult:
    """A suspended job has no pods; a resumed one goes on with a new attempt, which does not count.

    With a queue a job waits there first. A suspension that no operator saw is made up for.
    """
    suspended = s.status.is_true("Suspended")
    queued = s.status.is_true("Queued")
    if s.job.spec.run_policy.suspend or missed_suspension(s):
        if not suspended and is_corrected(s):
            return PolicyResult(Begin(s.attempt + 1, "Changed"))
        return NO_DECISION if suspended else PolicyResult(_halt(s))
    if queued or (not suspended and s.attempt > 0):
        return NO_DECISION
    if s.job.queue and s.observed.kueue is not None:
        return PolicyResult(Enqueue("Waiting", f"the job waits in LocalQueue {s.job.queue}"))
    # Pods without a status: someone restored the job and lost its past. Their attempts are not taken up again.
    newest = max((pod.attempt for pod in s.observed.pods), default=0)
    return PolicyResult(Begin(max(s.attempt, newest) + 1, "Resumed" if suspended else "Started"))


def _halt(s: Situation) -> Halt:
    """The end of the attempt, by the user's word or for a change; a queue is asked again for what the job is."""
    if s.job.spec.run_policy.suspend:
        return Halt()
    if s.has_workload and is_prebuilt(s.job):
        return Halt(
            "Changed",
            "the job was changed where it runs, and its Workload is for what it was: suspend it, "
            "change it and resume it on the cluster where it was submitted",
        )
    was = "suspended, changed and resumed" if s.status.ledger.has_run else "changed before it ran"
    queues = f", and it waits in LocalQueue {s.job.queue} anew" if s.job.queue else "; it begins anew"
    return Halt("Changed", f"the job was {was}: its pods are deleted{queues}")


def is_corrected(s: Situation) -> bool:
    """Whether a job that never ran is made of something else by now, and need not ask a queue for that."""
    may = not s.job.spec.run_policy.suspend and not s.status.ledger.has_run and not s.gang_may_have_begun
    return may and not s.job.queue and not s.has_workload and missed_suspension(s)


def missed_suspension(s: Situation) -> bool:
    """Whether the job was suspended, changed and resumed since it began, while nobody looked.

    Its pods are those of another spec, and what they attest is not what this one asks for.
    """
    begun_with, fixed = s.status.ledger.begun_with or "", s.job.spec.fixed
    return begun_with != fixed and comparable(fixed, begun_with)
