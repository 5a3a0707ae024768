"""A pod that went silent: whether its node or the job is to blame is known when the pod is gone, or its node is.

The gang restarts at once. The next attempt's pods wait for that pod anyway, and until then nothing is counted.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from ..observe.model import PodView
from ..status.decision import NO_DECISION, Decision, Finish, Policy, PolicyResult, Restart
from ..status.model import JobStatus, LostPod
from ..status.situation import Situation
from ..workers.gang import node_is_suspect
from .failure_rules import limit_reached

# How long after a pod's grace period a kubelet that lives may take to say that it has ended.
ANSWERS_WITHIN_S = 10
# How long the operator may wait for other words on a lost agent or launcher before it judges.
JUDGED_WITHIN_S = 60


def lost_pod(s: Situation) -> PolicyResult:
    """A job ends when a pod was lost by its own doing, and no restart is left; until that is known it waits."""
    lost, fate = s.status.ledger.lost_pod, _fate(s)
    if lost is None or fate == "node":
        return NO_DECISION
    if fate == "job":
        failure = s.status.failure if _is_over(s) else None
        return PolicyResult(limit_reached(s, failure)) if failure is not None else NO_DECISION
    pod = _pod(s, lost)
    due = pod.deletion_time if pod is not None and pod.deletion_time is not None else s.now
    return PolicyResult(requeue_at=max(due, s.now) + timedelta(seconds=ANSWERS_WITHIN_S))


def note_lost_pod(s: Situation, decision: Decision | None) -> JobStatus:
    """The status with the pod that was lost, until it is known why; then with what that counts for."""
    if isinstance(decision, Restart) and decision.lost is not None:
        return s.status.noted(lost_pod=decision.lost)
    if s.finished or isinstance(decision, Finish):
        return s.status.noted(lost_pod=None)
    fate = _fate(s)
    if fate is None or (fate == "job" and _is_over(s)):
        return s.status
    count = {"disruptions": s.status.disruptions + 1} if fate == "node" else {"restarts": s.status.restarts + 1}
    return s.status.model_copy(update=count).noted(lost_pod=None)


def went_silent(s: Situation, pod: PodView) -> LostPod:
    """What is noted of a pod that nobody has heard of for as long as anybody waits."""
    silent = timedelta(seconds=s.job.spec.networking.timeout_seconds + JUDGED_WITHIN_S)
    return LostPod(uid=pod.uid, pod=pod.name, node=pod.node or None, since=s.now - silent)


def _fate(s: Situation) -> Literal["node", "job"] | None:
    """Who took the pod; None: that is not known yet, or there is none.

    A kubelet that lives ends the pod in its time and says so; a node that was not ready meanwhile has lost it.
    """
    lost = s.status.ledger.lost_pod
    if lost is None:
        return None
    pod, ready = _pod(s, lost), s.observed.nodes_ready.get(lost.node or "")
    if ready is False or (pod is not None and node_is_suspect(pod)):
        return "node"
    if pod is None:
        return "job"
    overdue = pod.deletion_time is not None and s.now >= pod.deletion_time + timedelta(seconds=ANSWERS_WITHIN_S)
    return "node" if overdue and ready is None else None


def _pod(s: Situation, lost: LostPod) -> PodView | None:
    return next((pod for pod in s.observed.pods if pod.uid == lost.uid), None)


def _is_over(s: Situation) -> bool:
    return s.status.restarts >= s.job.spec.run_policy.backoff_limit


LOST_POD = Policy(lost_pod, note_lost_pod)
