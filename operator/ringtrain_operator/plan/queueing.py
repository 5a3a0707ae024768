"""When the pods of a job may exist: start, suspension, resumption, a queue of Kueue; what its Workload is told.

The Workload is made when no pod of the job is there, pods are made while it is admitted, and its quota is given
back when they are gone: at no moment do two jobs use the same quota.
"""

from dataclasses import replace

from ..build import BuildSettings
from ..build.names import ObjectRef
from ..placement.kueue import patches, workload
from ..placement.kueue.view import WorkloadView
from ..spec.job import comparable_spec
from ..status.decision import NO_DECISION, Begin, Enqueue, Halt, Policy, PolicyResult
from ..status.situation import Situation
from .result import PlannedDeletion, WorkloadChange

# Of spec.managedBy: the job runs on another cluster, which Kueue chooses; here it has a Workload and no pods.
MULTIKUEUE = "kueue.x-k8s.io/multikueue"


def suspension(s: Situation) -> PolicyResult:
    """A suspended job has no pods; a resumed one goes on with a new attempt, which does not count.

    With a queue a job waits there first. A suspension that no operator saw is made up for.
    """
    suspended = s.is_suspended
    queued = s.is_queued
    if s.job.spec.run_policy.suspend or missed_suspension(s):
        if not suspended and is_corrected(s):
            return PolicyResult(Begin(s.attempt + 1, "Changed"))
        return NO_DECISION if suspended else PolicyResult(_halt_queued_job(s))
    if queued or (not suspended and s.attempt > 0):
        return NO_DECISION
    if s.job.queue and s.observed.kueue is not None:
        return PolicyResult(Enqueue("Waiting", f"the job waits in LocalQueue {s.job.queue}"))
    # Pods without a status: someone restored the job and lost its past. Their attempts are not taken up again.
    newest = max((pod.id.attempt for pod in s.observed.pods), default=0)
    return PolicyResult(Begin(max(s.attempt, newest) + 1, "Resumed" if suspended else "Started"))


def _halt_queued_job(s: Situation) -> Halt:
    """The end of the attempt, by the user's word or for a change; a queue is asked again for what the job is."""
    if s.job.spec.run_policy.suspend:
        return Halt()
    if s.has_workload and workload.is_prebuilt(s.job):
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
    return begun_with != fixed and comparable_spec(fixed, begun_with)


def queueing(s: Situation) -> PolicyResult:
    """A job waits without pods until its Workload is admitted, and waits again when its quota is asked back."""
    if s.is_queued:
        return replace(_waiting_workload(s), is_last=True)
    if s.is_suspended:
        return PolicyResult(is_last=True)
    if not s.has_workload or s.attempt == 0 or s.observed.kueue is None:
        return NO_DECISION
    view = s.workload
    if view is None or view.ending:
        return PolicyResult(Enqueue("WorkloadDeleted", "somebody deleted the job's Workload", disrupted=True))
    if view.evicted is not None:
        reason, message = str(view.evicted.get("reason") or "Evicted"), str(view.evicted.get("message") or "")
        return PolicyResult(Enqueue(reason, message, disrupted=True))
    if not view.may_run:
        return PolicyResult(Enqueue("NotAdmitted", view.words, disrupted=True))
    if not fits_admission(s, view):
        message = f"worker.replicas changed from {s.status.ledger.attempt_workers} to {s.job.num_workers}"
        return PolicyResult(Enqueue("Scaled", message))
    return NO_DECISION


def fits_admission(s: Situation, view: WorkloadView) -> bool:
    """Whether the Workload asks for as many workers as the job wants; an elastic job may want fewer by now."""
    workers = view.counts.get("workers", 0) - view.reclaimed.get("workers", 0)
    if s.job.spec.elastic is not None:
        return s.job.num_workers <= workers or s.job.num_workers == s.status.ledger.attempt_workers
    return s.job.num_workers == workers


def workload_change(s: Situation, settings: BuildSettings) -> WorkloadChange | None:
    """What becomes of the job's Workload next, given a status whose decisions are made."""
    kueue, view = s.observed.kueue, s.workload
    if kueue is None or not s.has_workload or (view is not None and (view.ending or view.foreign)):
        return None
    if s.finished:
        return _finished_workload(s, view)
    if s.is_suspended or not s.job.queue:
        return None if s.observed.pods else _deleted_workload(s, view)
    if s.is_queued:
        return None if s.observed.pods else _queued_workload(s, view, settings)
    return _running_workload(s, view) if view is not None and view.may_run else None


def queued_elsewhere(s: Situation, settings: BuildSettings) -> WorkloadChange | None:
    """The Workload of a job that MultiKueue runs on another cluster; the rest is Kueue's."""
    kueue, view = s.observed.kueue, s.workload
    if kueue is None or not s.job.queue or s.finished:
        return None
    if s.job.spec.run_policy.suspend:
        return _deleted_workload(s, view)
    return _made_workload(s, settings) if view is None else None


def _waiting_workload(s: Situation) -> PolicyResult:
    view, newest = s.workload, max((pod.id.attempt for pod in s.observed.pods), default=0)
    attempt = max(s.attempt, newest) + 1
    if not s.job.queue:
        return NO_DECISION if view is not None else PolicyResult(Begin(attempt, "Dequeued"))
    if view is None or not view.may_run or s.observed.pods or not fits_admission(s, view):
        return NO_DECISION
    return PolicyResult(Begin(attempt, "Admitted"))


def _queued_workload(s: Situation, view: WorkloadView | None, settings: BuildSettings) -> WorkloadChange | None:
    """A Workload that waits for what the job wants."""
    if view is None:
        return _made_workload(s, settings)
    if not view.has_owner:
        return _patched_workload(view, patches.owned_workload(view, s.job), "")
    if view.evicted is not None and view.reserved:
        return _patched_workload(view, patches.quota_returned(view, s.now))
    if view.finished or (view.reserved and not fits_admission(s, view)):
        return _deleted_workload(s, view)
    wants = {name: count for name, count in workload.kueue_pod_counts(s.job).items() if name in view.counts}
    asks = {name: view.counts[name] for name in wants}
    if not view.reserved and (view.queue, asks) != (s.job.queue, wants):
        return _patched_workload(view, patches.resized_workload(view, s.job), "")
    return None


def _running_workload(s: Situation, view: WorkloadView) -> WorkloadChange | None:
    """Whether all pods run, and which are not needed any more."""
    ready = _pods_ready(s, view)
    if ready and (patch := patches.conditions_set(view, s.now, ready)):
        return _patched_workload(view, patch)
    spare = view.counts.get("workers", 0) - s.status.ledger.attempt_workers
    granted = view.grants["workers"].count if "workers" in view.grants else 0
    if s.status.ledger.attempt_workers < granted and spare > view.reclaimed.get("workers", 0):
        return _patched_workload(view, patches.reclaimed_workload_pods(view, {**view.reclaimed, "workers": spare}))
    return None


def _pods_ready(s: Situation, view: WorkloadView) -> patches.ConditionFields | None:
    """The condition of a gang's pods; None before its first start, which Kueue takes for WaitForStart."""
    before = view.condition("PodsReady")
    if s.status.is_true("Running"):
        return ("PodsReady", "True", "Started", "All pods run and the gang has begun")
    if before is None:
        return None
    if view.is_true("PodsReady") or before.get("reason") == "WaitForRecovery":
        return ("PodsReady", "False", "WaitForRecovery", "The gang is restarting")
    return ("PodsReady", "False", "WaitForStart", "Not all pods are ready or succeeded")


def _finished_workload(s: Situation, view: WorkloadView | None) -> WorkloadChange | None:
    """Finished, once no pod uses the quota any more."""
    cleaned = s.job.spec.run_policy.clean_pod_policy != "None"
    if view is None or view.finished or (cleaned and any(not pod.finished for pod in s.observed.pods)):
        return None
    ended = s.status.condition("Succeeded") if s.status.is_true("Succeeded") else s.status.condition("Failed")
    message = ended.message if ended is not None else ""
    reason = "Succeeded" if s.status.is_true("Succeeded") else "Failed"
    return _patched_workload(view, patches.conditions_set(view, s.now, ("Finished", "True", reason, message)))


def _made_workload(s: Situation, settings: BuildSettings) -> WorkloadChange | None:
    kueue = s.observed.kueue
    if kueue is None or kueue.problem or workload.is_prebuilt(s.job):
        return None
    return WorkloadChange("create", workload.build_workload(s.job, kueue.version, kueue.priority, settings))


def _deleted_workload(s: Situation, view: WorkloadView | None) -> WorkloadChange | None:
    if view is None or workload.is_prebuilt(s.job):
        return None
    return WorkloadChange("delete", deletion=PlannedDeletion(ObjectRef("Workload", view.name), view.uid))


def _patched_workload(view: WorkloadView, patch: patches.Patch, subresource: str = "status") -> WorkloadChange:
    return WorkloadChange("patch", {"name": view.name, "patch": patch, "subresource": subresource})


SUSPENSION = Policy(suspension)
QUEUEING = Policy(queueing)
