"""Deadlines of a job: for its total time without suspensions, for the start of its pods, and between two steps.

An invalid image name can never start; a missing ConfigMap or claim may still be created. Pods without a
node are waited for, see decision 0011. A gang that occupies nodes while it waits for an image, a volume's server or the
network releases the nodes after a while and tries again.
"""

import re
from datetime import datetime, timedelta

from ..observe.model import PodView
from ..status.decision import NO_DECISION, Finish, GiveWay, Policy, PolicyResult
from ..status.model import Failure
from ..status.situation import Situation
from ..status.waiting import NODE_WAITS
from .failure_rules import judge_failure
from .outcome import NO_PROGRAM, failure_of_slowest, failure_with

DEADLINE_EXCEEDED = "DeadlineExceeded"
PROGRESS_EXCEEDED = "ProgressDeadlineExceeded"
REASON = "CannotStart"
# Waiting reasons that a user may still resolve: a ConfigMap, a Secret or its key, an image on the node.
_NOT_YET = frozenset({"CreateContainerConfigError", "CreateContainerError", "ErrImageNeverPull"})
# Messages about missing objects, from mount Events and from the scheduler. A server that does not answer does not
# match.
_MISSING = re.compile(
    r'(configmap|secret|persistentvolumeclaim)s? "[^"]+" not found|references non-existent (config|secret) key'
)
_MISSES = frozenset({"FailedMount", "Unschedulable"})
# Interval at which to observe a pod that waits for a volume or image without giving a reason.
RECHECK_S = 60


def active_deadline(s: Situation) -> PolicyResult:
    """Fail the job if it has been active for longer than runPolicy.activeDeadlineSeconds."""
    limit = s.job.spec.run_policy.active_deadline_seconds
    if limit is None or s.status.ledger.active_since is None:
        return NO_DECISION
    due = s.status.ledger.active_since + timedelta(seconds=limit - s.status.ledger.active_seconds)
    if s.now < due:
        return PolicyResult(requeue_at=due)
    message = f"the job was active for longer than activeDeadlineSeconds: {limit}{_waiting_reason_text(s)}"
    failure = failure_of_slowest(s, DEADLINE_EXCEEDED, message)
    return PolicyResult(Finish("Failed", DEADLINE_EXCEEDED, message, failure))


def _waiting_reason_text(s: Situation) -> str:
    """Return why the job was not running, as the end of a failure message; empty if it was running."""
    running = s.status.condition("Running")
    if running is None or running.status == "True" or not running.message:
        return ""
    return f"; it did not run ({running.reason}: {running.message})"


def progress_deadline(s: Situation) -> PolicyResult:
    """Restart the gang if no step was reported within runPolicy.progressDeadlineSeconds.

    Only a current report of the launcher counts: without one the operator knows nothing about steps.
    """
    limit = s.job.spec.run_policy.progress_deadline_seconds
    report = s.report
    if limit is None or report is None or report.phase != "Running":
        return NO_DECISION
    # Start at the last step, or when all ranks were present: pulling images and queueing do not count.
    last = max((moment for moment in (report.running_since, report.last_progress_time) if moment), default=None)
    if last is None:
        return NO_DECISION
    due = last + timedelta(seconds=limit)
    if s.now < due:
        return PolicyResult(requeue_at=due)
    if s.now - timedelta(seconds=s.observed.launcher_age_s) < due:  # a step may have been reported since
        return PolicyResult(requeue_at=s.now + timedelta(seconds=1))
    step = (report.progress or {}).get("step")
    message = f"no step was reported for {limit} s; last step: {'none' if step is None else step}"
    return PolicyResult(judge_failure(s, failure_of_slowest(s, PROGRESS_EXCEEDED, message)))


def unstartable(s: Situation) -> PolicyResult:
    """Fail the attempt if a pod cannot start: at once if an object or an image name is invalid or a program is missing,
    otherwise after startTimeoutSeconds.

    If the launcher gave up first, do not wait: the next attempt's pods would have the same problem.
    """
    if s.attempt == 0 or s.gang_began or s.is_without_pods:
        return NO_DECISION
    if invalid := next((one for one in s.observed.refusals if one.is_permanent), None):
        name = invalid.ref.name if invalid.ref.kind == "Pod" else None
        failure = Failure(attempt=s.attempt, pod=name, reason=REASON, message=str(invalid), time=s.now)
        return PolicyResult(judge_failure(s, failure))
    refused = [pod for pod in s.pods if not pod.finished and (_never_starts(pod) or _lacks_creatable_object(pod))]
    if not refused:
        return _give_way_to_others(s) or PolicyResult(requeue_at=_silent_pod_requeue_time(s))
    pod = min(refused, key=lambda pod: (not _never_starts(pod), _unstartable_since(s, pod)))
    if _never_starts(pod):
        return PolicyResult(judge_failure(s, _deadline_failure(s, pod, "can't start")))
    limit_s = s.job.spec.networking.start_timeout_seconds
    due = _unstartable_since(s, pod) + timedelta(seconds=limit_s)
    if s.now < due and not (s.launcher is not None and s.launcher.finished):
        return PolicyResult(requeue_at=due)
    what = f"could not start within {limit_s} s (networking.startTimeoutSeconds)"
    return PolicyResult(judge_failure(s, _deadline_failure(s, pod, what)))


def _give_way_to_others(s: Situation) -> PolicyResult | None:
    """Decide to delete the pods of a gang that do not start on their nodes in time, to try again later.

    Returns None if no pod waits on a node, or if a launcher runs, which reports the timeout itself.
    """
    waiting = [pod for pod in s.pods if pod.wait.reason in NODE_WAITS and pod.place.node and not pod.finished]
    if not waiting or (s.launcher is not None and s.launcher.phase == "Running"):
        return None
    pod = min(waiting, key=lambda pod: _unstartable_since(s, pod))
    limit_s = s.job.spec.networking.start_timeout_seconds
    due = _unstartable_since(s, pod) + timedelta(seconds=limit_s)
    if s.now < due:
        return PolicyResult(requeue_at=due)
    detail = f": {pod.wait.message}" if pod.wait.message else ""
    what = f"did not run within {limit_s} s (networking.startTimeoutSeconds)"
    return PolicyResult(GiveWay(None, refused=f"{pod.id.name} {what}: {pod.wait.reason}{detail}"))


def _never_starts(pod: PodView) -> bool:
    return pod.wait.reason == "InvalidImageName" or NO_PROGRAM.search(pod.wait.message) is not None


def _lacks_creatable_object(pod: PodView) -> bool:
    """Return whether the pod waits for an object, such as a ConfigMap, that a user may still create."""
    return pod.wait.reason in _NOT_YET or (pod.wait.reason in _MISSES and _MISSING.search(pod.wait.message) is not None)


def _unstartable_since(s: Situation, pod: PodView) -> datetime:
    return pod.place.scheduled_at or pod.place.unschedulable_since or s.now


def _silent_pod_requeue_time(s: Situation) -> datetime | None:
    """Return the time of the next check of a pod whose kubelet reports no state; None if there is none."""
    due = min((due for pod in s.pods if (due := pod.kubelet_report_due) is not None), default=None)
    return max(due, s.now + timedelta(seconds=RECHECK_S)) if due is not None and due <= s.now else due


def _deadline_failure(s: Situation, pod: PodView, what: str) -> Failure:
    detail = f": {pod.wait.message}" if pod.wait.message else ""
    return failure_with(pod, s, REASON, f"{pod.id.name} {what}: {pod.wait.reason}{detail}")


ACTIVE_DEADLINE = Policy(active_deadline)
PROGRESS_DEADLINE = Policy(progress_deadline)
UNSTARTABLE = Policy(unstartable)
