"""Policies for suspension and for a queue of Kueue, and the changes of the job's Workload.

The Workload is created when the job has no pods, pods are created while it is admitted, and its quota is released after
they are deleted. So two jobs never use the same quota at once.
"""

from dataclasses import replace

from ..build import BuildSettings
from ..build.names import ObjectRef
from ..placement.kueue import patches, workload
from ..placement.kueue.view import WorkloadView
from ..spec.job import are_comparable_digests
from ..status.decision import NO_DECISION, Begin, Enqueue, Halt, Policy, PolicyResult
from ..status.situation import Situation
from .result import PlannedDeletion, WorkloadChange

# Value of spec.managedBy: Kueue runs the job on another cluster. Here it has a Workload and no pods.
MULTIKUEUE = "kueue.x-k8s.io/multikueue"


def suspension(s: Situation) -> PolicyResult:
    """Decide to suspend, resume or start a job. A resumed job begins a new attempt, which does not count as restart.

    With a queue the job waits there first. A suspension that no operator observed is carried out later.
    """
    suspended = s.is_suspended
    queued = s.is_queued
    if s.job.spec.run_policy.suspend or missed_suspension(s):
        if not suspended and is_corrected(s):
            return PolicyResult(Begin(s.attempt + 1, "Changed"))
        return NO_DECISION if suspended else PolicyResult(_halt_decision(s))
    if queued or (not suspended and s.attempt > 0):
        return NO_DECISION
    if s.job.queue and s.observed.kueue is not None:
        return PolicyResult(Enqueue("Waiting", f"the job waits in LocalQueue {s.job.queue}"))
    # Pods without a status: the job was restored without its history. The attempts of these pods are not resumed.
    newest = max((pod.id.attempt for pod in s.observed.pods), default=0)
    return PolicyResult(Begin(max(s.attempt, newest) + 1, "Resumed" if suspended else "Started"))


def _halt_decision(s: Situation) -> Halt:
    """Decide to delete the job's pods, because the user has suspended the job or changed its spec."""
    if s.job.spec.run_policy.suspend:
        return Halt()
    if s.has_workload and workload.is_prebuilt(s.job):
        return Halt(
            "Changed",
            "the job was changed on the cluster where it runs, but its Workload is for the earlier spec: suspend it, "
            "change it and resume it on the cluster where it was submitted",
        )
    was = "suspended, changed and resumed" if s.status.ledger.has_run else "changed before it ran"
    queues = f", and it waits in LocalQueue {s.job.queue} again" if s.job.queue else "; it starts again"
    return Halt("Changed", f"the job was {was}: its pods are deleted{queues}")


def is_corrected(s: Situation) -> bool:
    """Return whether the spec of a job that never ran has changed, and no queue has to admit the change."""
    may = not s.job.spec.run_policy.suspend and not s.status.ledger.has_run and not s.gang_may_have_begun
    return may and not s.job.queue and not s.has_workload and missed_suspension(s)


def missed_suspension(s: Situation) -> bool:
    """Return whether the job was suspended, changed and resumed while no operator observed it.

    The job's pods then have another spec, so their success does not count for the present spec.
    """
    recorded, current = s.status.ledger.begun_with or "", s.job.spec.frozen_digest
    return recorded != current and are_comparable_digests(current, recorded)


def queueing(s: Situation) -> PolicyResult:
    """Decide to queue the job until Kueue admits its Workload, and again if it loses its quota or changes its size."""
    if s.is_queued:
        return replace(_admission_result(s), is_last=True)
    if s.is_suspended:
        return PolicyResult(is_last=True)
    if not s.has_workload or s.attempt == 0 or s.observed.kueue is None:
        return NO_DECISION
    view = s.workload
    if view is None or view.ending:
        return PolicyResult(
            Enqueue("WorkloadDeleted", "the job's Workload was deleted by another client", disrupted=True)
        )
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
    """Return whether the Workload's number of workers is right for the job; an elastic job may have fewer."""
    workers = view.counts.get("workers", 0) - view.reclaimed.get("workers", 0)
    if s.job.spec.elastic is not None:
        return s.job.num_workers <= workers or s.job.num_workers == s.status.ledger.attempt_workers
    return s.job.num_workers == workers


def workload_change(s: Situation, settings: BuildSettings) -> WorkloadChange | None:
    """Return the next change of the job's Workload in Kueue, for a status that includes the decision."""
    kueue, view = s.observed.kueue, s.workload
    if kueue is None or not s.has_workload or (view is not None and (view.ending or view.foreign)):
        return None
    if s.finished:
        return _finished_workload_change(s, view)
    if s.is_suspended or not s.job.queue:
        return None if s.observed.pods else _workload_deletion(s, view)
    if s.is_queued:
        return None if s.observed.pods else _queued_workload_change(s, view, settings)
    return _running_workload_change(s, view) if view is not None and view.may_run else None


def delegated_workload_change(s: Situation, settings: BuildSettings) -> WorkloadChange | None:
    """Return the change of the Workload of a job that MultiKueue runs on another cluster."""
    kueue, view = s.observed.kueue, s.workload
    if kueue is None or not s.job.queue or s.finished:
        return None
    if s.job.spec.run_policy.suspend:
        return _workload_deletion(s, view)
    return _workload_creation(s, settings) if view is None else None


def _admission_result(s: Situation) -> PolicyResult:
    view, newest = s.workload, max((pod.id.attempt for pod in s.observed.pods), default=0)
    attempt = max(s.attempt, newest) + 1
    if not s.job.queue:
        return NO_DECISION if view is not None else PolicyResult(Begin(attempt, "Dequeued"))
    if view is None or not view.may_run or s.observed.pods or not fits_admission(s, view):
        return NO_DECISION
    return PolicyResult(Begin(attempt, "Admitted"))


def _queued_workload_change(s: Situation, view: WorkloadView | None, settings: BuildSettings) -> WorkloadChange | None:
    """Return the change of a waiting Workload by which it requests the pods that the job wants."""
    if view is None:
        return _workload_creation(s, settings)
    if not view.has_owner:
        return _workload_patch(view, patches.owner_patch(view, s.job), "")
    if view.evicted is not None and view.reserved:
        return _workload_patch(view, patches.quota_release_patch(view, s.now))
    if view.finished or (view.reserved and not fits_admission(s, view)):
        return _workload_deletion(s, view)
    wants = {name: count for name, count in workload.kueue_pod_counts(s.job).items() if name in view.counts}
    asks = {name: view.counts[name] for name in wants}
    if not view.reserved and (view.queue, asks) != (s.job.queue, wants):
        return _workload_patch(view, patches.resize_patch(view, s.job), "")
    return None


def _running_workload_change(s: Situation, view: WorkloadView) -> WorkloadChange | None:
    """Return the change that reports to Kueue whether all pods run, and how many are no longer needed."""
    ready = _pods_ready_condition(s, view)
    if ready and (patch := patches.conditions_patch(view, s.now, ready)):
        return _workload_patch(view, patch)
    spare = view.counts.get("workers", 0) - s.status.ledger.attempt_workers
    granted = view.grants["workers"].count if "workers" in view.grants else 0
    if s.status.ledger.attempt_workers < granted and spare > view.reclaimed.get("workers", 0):
        return _workload_patch(view, patches.reclaimed_pods_patch(view, {**view.reclaimed, "workers": spare}))
    return None


def _pods_ready_condition(s: Situation, view: WorkloadView) -> patches.ConditionFields | None:
    """Return the Workload's condition PodsReady; None before the first start, which needs no condition."""
    before = view.condition("PodsReady")
    if s.status.is_true("Running"):
        return ("PodsReady", "True", "Started", "All pods run and the gang has begun")
    if before is None:
        return None
    if view.is_true("PodsReady") or before.get("reason") == "WaitForRecovery":
        return ("PodsReady", "False", "WaitForRecovery", "The gang is restarting")
    return ("PodsReady", "False", "WaitForStart", "Not all pods are ready or succeeded")


def _finished_workload_change(s: Situation, view: WorkloadView | None) -> WorkloadChange | None:
    """Return the change that marks the Workload as finished, after all pods that use its quota have ended."""
    cleaned = s.job.spec.run_policy.clean_pod_policy != "None"
    if view is None or view.finished or (cleaned and any(not pod.finished for pod in s.observed.pods)):
        return None
    ended = s.status.condition("Succeeded") if s.status.is_true("Succeeded") else s.status.condition("Failed")
    message = ended.message if ended is not None else ""
    reason = "Succeeded" if s.status.is_true("Succeeded") else "Failed"
    return _workload_patch(view, patches.conditions_patch(view, s.now, ("Finished", "True", reason, message)))


def _workload_creation(s: Situation, settings: BuildSettings) -> WorkloadChange | None:
    kueue = s.observed.kueue
    if kueue is None or kueue.problem or workload.is_prebuilt(s.job):
        return None
    return WorkloadChange("create", workload.build_workload(s.job, kueue.version, kueue.priority, settings))


def _workload_deletion(s: Situation, view: WorkloadView | None) -> WorkloadChange | None:
    if view is None or workload.is_prebuilt(s.job):
        return None
    return WorkloadChange("delete", deletion=PlannedDeletion(ObjectRef("Workload", view.name), view.uid))


def _workload_patch(view: WorkloadView, patch: patches.Patch, subresource: str = "status") -> WorkloadChange:
    return WorkloadChange("patch", {"name": view.name, "patch": patch, "subresource": subresource})


SUSPENSION = Policy(suspension)
QUEUEING = Policy(queueing)
