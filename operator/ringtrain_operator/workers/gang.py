"""Launcher and worker pods of an attempt: which are missing or were removed by the cluster, and their counts.

A gang restarts as a whole. Losses of single pods of an elastic job are handled in replacing.py.
"""

from collections.abc import Sequence
from typing import Any

from .. import build
from ..build import BuildSettings
from ..observe.model import PodView
from ..observe.pods import failure_in
from ..status.decision import NO_DECISION, Policy, PolicyResult, Resize, Restart
from ..status.model import ReplicaStatus, ReplicaStatuses
from ..status.situation import Situation

# Time for the launcher to report which rank failed first, after a worker has failed.
LAUNCHER_REPORT_S = 30
# Maximum length of a last line of output in a message: a condition is one line.
LAST_LINE_CHARACTERS = 200
# Pod status reasons with which the kubelet or the control plane end a pod for causes outside the job.
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
# Reasons that agents report by themselves if they cannot reach the launcher.
_WITHOUT_LAUNCHER = frozenset({"LauncherFailed", "NotAssembled"})
# Reasons of DisruptionTarget for which the node is at fault.
_DISRUPTIONS_BY_NODE = frozenset({"TerminationByKubelet", "DeletionByTaintManager", "DeletionByPodGC"})


def gang_disruption(s: Situation) -> PolicyResult:
    """Restart the gang, without counting it, if the cluster has removed one of its pods."""
    cause = gang_disruption_cause(s)
    if cause is None:
        return NO_DECISION
    return PolicyResult(Restart("Disrupted", f"attempt {s.attempt}: {cause}"))


def gang_disruption_cause(s: Situation) -> str | None:
    """Return which pod of the current attempt was removed or replaced, and why; None if none was.

    In an elastic job only the launcher's pod counts, and only before there is a world. Later, each lost pod is replaced
    within the attempt, see replacing.py.
    """
    if s.has_world:
        return None
    elastic = s.job.spec.elastic is not None
    for pod in s.pods if not elastic else [pod for pod in s.pods if pod.id.role == "launcher"]:
        cause = gang_pod_disruption(pod)
        if cause:
            node = f" on node {pod.place.node}" if pod.place.node else ""
            return f"{pod.id.name}{node} {cause}"
    missing = s.missing_names if not elastic else tuple(n for n in s.missing_names if n == s.wanted_names[0])
    if missing == s.wanted_names[:1] and _verdict_is_known(s):
        return None
    # After its ranks have started, a launcher refuses replacement pods, except in an elastic job.
    if missing and (s.gang_began if elastic else s.gang_may_have_begun):
        return f"{', '.join(missing[:3])} no longer exists"
    return None if elastic else _replaced_pod_text(s)


def _verdict_is_known(s: Situation) -> bool:
    """Return whether a worker's termination message has the failure that the launcher determined."""
    failures = [failure_in(pod, s.attempt) for pod in s.workers if pod.finished]
    return any(failure and failure.get("reason") not in _WITHOUT_LAUNCHER for failure in failures)


def _replaced_pod_text(s: Situation) -> str | None:
    """Return a text if the pod that failed first was replaced by a new pod of the same name; otherwise None.

    In this case ranks had started before the operator observed that all pods run.
    """
    failure = failure_in(s.launcher, s.attempt) if s.launcher is not None and s.launcher.finished else {}
    lost = next((pod for pod in s.pods if pod.id.name == failure.get("pod")), None)
    uid = failure.get("podUid")
    if lost is None or not isinstance(uid, str) or uid in ("", lost.id.uid):
        return None
    return f"{lost.id.name} was replaced when its ranks had started"


def is_node_suspect(pod: PodView) -> bool:
    """Return whether the pod was removed because of its node, not by a preemption or a deletion."""
    if pod.disrupted.reason:
        return pod.disrupted.reason in _DISRUPTIONS_BY_NODE
    return pod.state.reason in _REASONS or pod.state.reason.startswith("OutOf") or pod.place.node_ready is False


def gang_pod_disruption(pod: PodView) -> str:
    """Return why the pod was removed; empty if it was not, or if it exceeded its own storage limit."""
    detail = f": {pod.state.message}" if pod.state.message else ""
    if pod.disrupted.reason:
        return f"was disrupted ({pod.disrupted.reason}){detail}"
    if pod.state.reason in _REASONS or pod.state.reason.startswith("OutOf"):
        # A pod that exceeds its own storage limit is also evicted, but without DisruptionTarget: the job is at fault.
        return (
            ""
            if pod.state.reason == "Evicted" and "exceed" in pod.state.message
            else f"was ended ({pod.state.reason}){detail}"
        )
    if pod.deletion_time is not None:
        return "was deleted"
    if pod.place.node_ready is False and pod.finished and pod.end.code is None:
        return "was on a node that is lost"
    return ""


def scale_workers(s: Situation) -> PolicyResult:
    """Restart or resize the gang if worker.replicas has changed.

    The gang restarts with the new world, which is not counted. In an elastic job workers join and leave within the
    attempt.
    """
    if s.attempt == 0 or s.status.ledger.attempt_workers == s.wanted_workers:
        return NO_DECISION
    if s.job.spec.elastic is not None:
        return PolicyResult(Resize(s.wanted_workers))
    message = f"worker.replicas changed from {s.status.ledger.attempt_workers} to {s.job.num_workers}"
    return PolicyResult(Restart("Scaled", message, delayed=False))


def missing_pods(s: Situation, settings: BuildSettings) -> tuple[dict[str, Any], ...]:
    """Return the launcher and worker pods to create because they do not exist."""
    missing = set(s.missing_names)
    if not missing:
        return ()
    indices = (i for i in range(s.status.ledger.attempt_workers) if build.worker_name(s.job, i) in missing)
    secret = s.secret.name
    workers = (build.build_worker_pod(s.job, s.attempt, index, secret, settings=settings) for index in indices)
    if build.launcher_name(s.job) not in missing:
        return tuple(workers)
    return (build.build_launcher_pod(s.job, s.attempt, secret, settings), *workers)


def one_pod_of_each(s: Situation, settings: BuildSettings) -> dict[str, dict[str, Any]]:
    """Return the launcher's pod and one worker's pod, from which an autoscaler learns what nodes they need."""
    secret = s.secret.name
    return {
        "launcher": s.gang.marked(build.build_launcher_pod(s.job, s.attempt, secret, settings)),
        "workers": s.gang.marked(build.build_typical_worker_pod(s.job, s.attempt, secret, settings=settings)),
    }


def worker_counts(s: Situation, ended: bool) -> dict[str, Any]:
    """Return the status fields that count pods. Of a finished job, ended pods count even if deleted.

    `ended`: whether the job has ended. It then wants no workers, and "0/2" would look like a problem.
    """
    launchers = [s.launcher] if s.launcher is not None else []
    before = s.status.replica_statuses if s.finished else ReplicaStatuses()
    workers = _replica_status(s.workers, before.worker)
    return {
        "replicas": len(s.workers),
        "selector": build.worker_selector(s.job),
        "workers": "-" if ended else f"{workers.ready}/{s.job.num_workers}",
        "replica_statuses": ReplicaStatuses(launcher=_replica_status(launchers, before.launcher), worker=workers),
    }


def _replica_status(pods: Sequence[PodView], before: ReplicaStatus) -> ReplicaStatus:
    succeeded = sum(pod.finished and pod.phase != "Failed" and pod.end.code in (0, None) for pod in pods)
    failed = sum(pod.finished for pod in pods) - succeeded
    active = [pod for pod in pods if not pod.finished and pod.deletion_time is None]
    return ReplicaStatus(
        active=len(active),
        ready=sum(pod.phase == "Running" and pod.main.ready for pod in active),
        succeeded=max(succeeded, before.succeeded),
        failed=max(failed, before.failed),
    )


DISRUPTION = Policy(gang_disruption)
SCALE = Policy(scale_workers)
