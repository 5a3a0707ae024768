"""How long a job is active (waiting counts, suspension does not), without a step, or with pods that can't start.

An image's name that is none never starts; a ConfigMap or a claim may still come. Images that can't be pulled and
other pods without a node are waited for, see decision 0011. Who waits for an image on a node gives the node back
after a while, and tries again.
"""

import re
from datetime import datetime, timedelta

from ..observe.model import PodView
from ..status.decision import NO_DECISION, Finish, GiveWay, Policy, PolicyResult
from ..status.model import Failure
from ..status.situation import Situation
from .failure_rules import judge_failure
from .outcome import failure_of_slowest, failure_with

DEADLINE_EXCEEDED = "DeadlineExceeded"
PROGRESS_EXCEEDED = "ProgressDeadlineExceeded"
REASON = "CannotStart"
# Reasons of a container's waiting state, as kubelets give them. What no wait can change:
_NEVER = frozenset({"InvalidImageName"})
# What somebody may still make: a ConfigMap, a Secret, a key of one, an image on the node.
_NOT_YET = frozenset({"CreateContainerConfigError", "CreateContainerError", "ErrImageNeverPull"})
# What mounting says of these (of the pod's Events), and the scheduler of a claim. A server that does not answer is
# waited for.
_MISSING = re.compile(
    r'(configmap|secret|persistentvolumeclaim)s? "[^"]+" not found|references non-existent (config|secret) key'
)
# An image that somebody may still push, and a registry that may answer again.
_NOT_PULLED = frozenset({"ErrImagePull", "ImagePullBackOff"})
_MISSES = frozenset({"FailedMount", "Unschedulable"})
# How often a pod is looked at that waits for its volumes or for its image, and does not say for which.
LOOK_AGAIN_S = 60


def active_deadline(s: Situation) -> PolicyResult:
    """The job fails when it has been active for longer than it may."""
    limit = s.job.spec.run_policy.active_deadline_seconds
    if limit is None or s.status.ledger.active_since is None:
        return NO_DECISION
    due = s.status.ledger.active_since + timedelta(seconds=limit - s.status.ledger.active_seconds)
    if s.now < due:
        return PolicyResult(requeue_at=due)
    message = f"the job was active for longer than activeDeadlineSeconds: {limit}{_what_it_did(s)}"
    failure = failure_of_slowest(s, DEADLINE_EXCEEDED, message)
    return PolicyResult(Finish("Failed", DEADLINE_EXCEEDED, message, failure))


def _what_it_did(s: Situation) -> str:
    """What the job was waiting for, if it did not run: afterwards nobody could tell."""
    running = s.status.condition("Running")
    if running is None or running.status == "True" or not running.message:
        return ""
    return f"; it did not run ({running.reason}: {running.message})"


def progress_deadline(s: Situation) -> PolicyResult:
    """Judged only by what the launcher says now: an operator that cannot reach it knows nothing about steps."""
    limit = s.job.spec.run_policy.progress_deadline_seconds
    report = s.report
    if limit is None or report is None or report.phase != "Running":
        return NO_DECISION
    # The last step, or when all ranks were there: pulling images and queueing are no lack of progress.
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
    """A job ends whose gang can't begin because a pod is refused: at once, or after startTimeoutSeconds.

    Where the launcher gave up first it does not wait: the next attempt's pods would be refused as well.
    """
    if s.attempt == 0 or s.gang_began or s.is_without_pods:
        return NO_DECISION
    refused = [pod for pod in s.pods if not pod.finished and (pod.wait.reason in _NEVER or _may_pod_start(pod))]
    if not refused:
        return _not_pulled(s) or PolicyResult(requeue_at=_look_again_at_deadline(s))
    pod = min(refused, key=lambda pod: (pod.wait.reason not in _NEVER, _unstartable_since(s, pod)))
    if pod.wait.reason in _NEVER:
        return PolicyResult(judge_failure(s, _deadline_failure(s, pod, "can't start")))
    limit_s = s.job.spec.networking.start_timeout_seconds
    due = _unstartable_since(s, pod) + timedelta(seconds=limit_s)
    if s.now < due and not (s.launcher is not None and s.launcher.finished):
        return PolicyResult(requeue_at=due)
    what = f"could not start within {limit_s} s (networking.startTimeoutSeconds)"
    return PolicyResult(judge_failure(s, _deadline_failure(s, pod, what)))


def _not_pulled(s: Situation) -> PolicyResult | None:
    """Pods that wait for an image hold no devices for ever: the gang gives its nodes back, and nothing is counted.

    None where no pod does, and where a launcher runs, which says so itself at the end of its patience.
    """
    waiting = [pod for pod in s.pods if pod.wait.reason in _NOT_PULLED and pod.place.node and not pod.finished]
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


def _may_pod_start(pod: PodView) -> bool:
    """Whether the pod lacks something that somebody may still make."""
    return pod.wait.reason in _NOT_YET or (pod.wait.reason in _MISSES and _MISSING.search(pod.wait.message) is not None)


def _unstartable_since(s: Situation, pod: PodView) -> datetime:
    return pod.place.scheduled_at or pod.place.unschedulable_since or s.now


def _look_again_at_deadline(s: Situation) -> datetime | None:
    """When to read what is said of a pod that has a node and says nothing."""
    due = min((due for pod in s.pods if (due := pod.speaks_by) is not None), default=None)
    return max(due, s.now + timedelta(seconds=LOOK_AGAIN_S)) if due is not None and due <= s.now else due


def _deadline_failure(s: Situation, pod: PodView, what: str) -> Failure:
    detail = f": {pod.wait.message}" if pod.wait.message else ""
    return failure_with(pod, s, REASON, f"{pod.id.name} {what}: {pod.wait.reason}{detail}")


ACTIVE_DEADLINE = Policy(active_deadline)
PROGRESS_DEADLINE = Policy(progress_deadline)
UNSTARTABLE = Policy(unstartable)
