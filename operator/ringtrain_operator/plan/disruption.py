"""Pods that were taken away (evicted, preempted, drained, deleted, node lost): a restart that does not count."""

from __future__ import annotations

from ..observe.model import PodView
from ..status.situation import Situation
from .decision import NO_DECISION, PolicyResult, Restart

# Reasons in a pod's status with which kubelet or control plane end it for causes outside the job.
_REASONS = frozenset(
    {
        "Evicted",
        "Preempting",
        "NodeLost",
        "NodeShutdown",
        "Shutdown",
        "Terminated",
        "NodeAffinity",
        "UnexpectedAdmissionError",
    }
)


def disruption(s: Situation) -> PolicyResult:
    """The gang restarts, not counted, when one of its pods was taken away."""
    cause = disruption_cause(s)
    if cause is None:
        return NO_DECISION
    return PolicyResult(Restart("Disrupted", f"attempt {s.attempt}: {cause}"))


def disruption_cause(s: Situation) -> str | None:
    """Who took which pod of the present attempt away; None when all are where they should be."""
    for pod in s.pods:
        cause = pod_disruption(pod)
        if cause:
            node = f" on node {pod.node}" if pod.node else ""
            return f"{pod.name}{node} {cause}"
    if s.gang_began and s.missing_names:
        return f"{', '.join(s.missing_names[:3])} no longer exists"
    return None


def pod_disruption(pod: PodView) -> str:
    """What took the pod away, or empty. The plan deletes only pods of attempts that are over: this was not us."""
    detail = f": {pod.message}" if pod.message else ""
    if pod.disruption:
        return f"was disrupted ({pod.disruption}){detail}"
    if pod.reason in _REASONS or pod.reason.startswith("OutOf"):
        # A pod over its own storage limit is evicted too, but without DisruptionTarget: that is the job's doing.
        return "" if pod.reason == "Evicted" and "exceed" in pod.message else f"was ended ({pod.reason}){detail}"
    if pod.deletion_time is not None:
        return "was deleted"
    if pod.node_ready is False and pod.finished and pod.exit_code is None:
        return "was on a node that is lost"
    return ""
