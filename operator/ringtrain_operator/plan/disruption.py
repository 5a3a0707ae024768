"""Pods that were taken away (evicted, preempted, drained, deleted, node lost): a restart that does not count."""

from __future__ import annotations

from ..observe.model import PodView
from ..observe.pods import failure_in
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
# Reasons of DisruptionTarget for which the node is the cause.
_DISRUPTIONS_BY_NODE = frozenset({"TerminationByKubelet", "DeletionByTaintManager", "DeletionByPodGC"})


def disruption(s: Situation) -> PolicyResult:
    """The gang restarts, not counted, when one of its pods was taken away."""
    cause = disruption_cause(s)
    if cause is None:
        return NO_DECISION
    return PolicyResult(Restart("Disrupted", f"attempt {s.attempt}: {cause}"))


def disruption_cause(s: Situation) -> str | None:
    """Who took which pod of the present attempt away; None when all are where they should be.

    Of an elastic job's pods only the launcher's, and that only before there is a world: later each pod is made
    anew within the attempt, see incarnations.py and relaunch.py.
    """
    if s.has_world:
        return None
    elastic = s.job.spec.elastic is not None
    for pod in s.pods if not elastic else [pod for pod in s.pods if pod.role == "launcher"]:
        cause = pod_disruption(pod)
        if cause:
            node = f" on node {pod.node}" if pod.node else ""
            return f"{pod.name}{node} {cause}"
    missing = s.missing_names if not elastic else tuple(n for n in s.missing_names if n == s.wanted_names[0])
    # A launcher whose ranks have started refuses a pod that is made anew, but for an elastic job's.
    if missing and (s.gang_began if elastic else s.gang_may_have_begun):
        return f"{', '.join(missing[:3])} no longer exists"
    return None if elastic else _replaced(s)


def _replaced(s: Situation) -> str | None:
    """What became of the pod in which the launcher's first failure was, if another one has its name: its ranks had
    started before all pods were seen to run."""
    failure = failure_in(s.launcher, s.attempt) if s.launcher is not None and s.launcher.finished else {}
    lost = next((pod for pod in s.pods if pod.name == failure.get("pod")), None)
    uid = failure.get("podUid")
    if lost is None or not isinstance(uid, str) or uid in ("", lost.uid):
        return None
    return f"{lost.name} was replaced when its ranks had started"


def node_is_suspect(pod: PodView) -> bool:
    """Whether the pod was taken away because of its node, and not because somebody wanted its place or its end."""
    if pod.disruption:
        return pod.disruption in _DISRUPTIONS_BY_NODE
    return pod.reason in _REASONS or pod.reason.startswith("OutOf") or pod.node_ready is False


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
