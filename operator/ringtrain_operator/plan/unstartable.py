"""Pods that the kubelet refuses to start: an image's name that is none never starts, a ConfigMap may still come.

Images that can't be pulled and pods without a node are waited for, see decision 0011.
"""

from __future__ import annotations

from datetime import timedelta

from ..observe.model import PodView
from ..status.model import Failure
from ..status.situation import Situation
from .decision import NO_DECISION, PolicyResult
from .failure_rules import judge

REASON = "CannotStart"
# Reasons of a container's waiting state, as kubelets give them. What no wait can change:
_NEVER = frozenset({"InvalidImageName"})
# What somebody may still make: a ConfigMap, a Secret, a key of one, an image on the node.
_NOT_YET = frozenset({"CreateContainerConfigError", "CreateContainerError", "ErrImageNeverPull"})


def unstartable(s: Situation) -> PolicyResult:
    """A job ends whose gang can't begin because a pod is refused: at once, or after startTimeoutSeconds.

    Where the launcher gave up first it does not wait: the next attempt's pods would be refused as well.
    """
    if s.attempt == 0 or s.gang_began:
        return NO_DECISION
    refused = [pod for pod in s.pods if not pod.finished and pod.waiting in _NEVER | _NOT_YET]
    if not refused:
        return NO_DECISION
    pod = min(refused, key=lambda pod: (pod.waiting not in _NEVER, pod.scheduled_at or s.now))
    if pod.waiting in _NEVER:
        return PolicyResult(judge(s, _failure(s, pod, "can't start")))
    limit_s = s.job.spec.networking.start_timeout_seconds
    due = (pod.scheduled_at or s.now) + timedelta(seconds=limit_s)
    if s.now < due and not (s.launcher is not None and s.launcher.finished):
        return PolicyResult(requeue_at=due)
    what = f"could not start within {limit_s} s (networking.startTimeoutSeconds)"
    return PolicyResult(judge(s, _failure(s, pod, what)))


def _failure(s: Situation, pod: PodView, what: str) -> Failure:
    detail = f": {pod.waiting_message}" if pod.waiting_message else ""
    message = f"{pod.name} {what}: {pod.waiting}{detail}"
    return Failure(
        attempt=s.attempt, pod=pod.name, node=pod.node or None, reason=REASON, message=message, time=s.now
    )
