"""The launcher and the workers of an attempt: which are missing, which others took away, how many there are.

A gang restarts as one. What becomes of the single pods of an elastic job is in replacing.py.
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

# How long a failed worker waits for the launcher to say which rank failed first.
LAUNCHER_REPORT_S = 30
# Of the error that a rank or a pod wrote last: a condition is one line.
LAST_LINE_CHARACTERS = 200
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
# What agents say by themselves when their launcher is away.
_WITHOUT_LAUNCHER = frozenset({"LauncherFailed", "NotAssembled"})
# Reasons of DisruptionTarget for which the node is the cause.
_DISRUPTIONS_BY_NODE = frozenset({"TerminationByKubelet", "DeletionByTaintManager", "DeletionByPodGC"})


def gang_disruption(s: Situation) -> PolicyResult:
    """The gang restarts, not counted, when one of its pods was taken away."""
    cause = gang_disruption_cause(s)
    if cause is None:
        return NO_DECISION
    return PolicyResult(Restart("Disrupted", f"attempt {s.attempt}: {cause}"))


def gang_disruption_cause(s: Situation) -> str | None:
    """Who took which pod of the present attempt away; None when all are where they should be.

    Of an elastic job's pods only the launcher's, and that only before there is a world: later each pod is made
    anew within the attempt, see replacing.py.
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
    # A launcher whose ranks have started refuses a pod that is made anew, but for an elastic job's.
    if missing and (s.gang_began if elastic else s.gang_may_have_begun):
        return f"{', '.join(missing[:3])} no longer exists"
    return None if elastic else _replaced_workers(s)


def _verdict_is_known(s: Situation) -> bool:
    """Whether a worker says how the attempt has failed, as the launcher has told it before it was removed."""
    failures = [failure_in(pod, s.attempt) for pod in s.workers if pod.finished]
    return any(failure and failure.get("reason") not in _WITHOUT_LAUNCHER for failure in failures)


def _replaced_workers(s: Situation) -> str | None:
    """What became of the pod in which the launcher's first failure was, if another one has its name: its ranks had
    started before all pods were seen to run."""
    failure = failure_in(s.launcher, s.attempt) if s.launcher is not None and s.launcher.finished else {}
    lost = next((pod for pod in s.pods if pod.id.name == failure.get("pod")), None)
    uid = failure.get("podUid")
    if lost is None or not isinstance(uid, str) or uid in ("", lost.id.uid):
        return None
    return f"{lost.id.name} was replaced when its ranks had started"


def node_is_suspect(pod: PodView) -> bool:
    """Whether the pod was taken away because of its node, and not because somebody wanted its place or its end."""
    if pod.disrupted.reason:
        return pod.disrupted.reason in _DISRUPTIONS_BY_NODE
    return pod.state.reason in _REASONS or pod.state.reason.startswith("OutOf") or pod.place.node_ready is False


def gang_pod_disruption(pod: PodView) -> str:
    """What took the pod away, or empty. The plan deletes only pods of attempts that are over: this was not us."""
    detail = f": {pod.state.message}" if pod.state.message else ""
    if pod.disrupted.reason:
        return f"was disrupted ({pod.disrupted.reason}){detail}"
    if pod.state.reason in _REASONS or pod.state.reason.startswith("OutOf"):
        # A pod over its own storage limit is evicted too, but without DisruptionTarget: that is the job's doing.
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
    """The present attempt was made for another number of workers than the spec now asks for.

    The gang restarts with the new world, which does not count as a failure. In an elastic job workers join and
    leave within the attempt.
    """
    if s.attempt == 0 or s.status.ledger.attempt_workers == s.wanted_workers:
        return NO_DECISION
    if s.job.spec.elastic is not None:
        return PolicyResult(Resize(s.wanted_workers))
    message = f"worker.replicas changed from {s.status.ledger.attempt_workers} to {s.job.num_workers}"
    return PolicyResult(Restart("Scaled", message, delayed=False))


def missing_pods(s: Situation, settings: BuildSettings) -> tuple[dict[str, Any], ...]:
    """The launcher and the workers that are not there, as they are created."""
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
    """The launcher's pod and a worker's, for an autoscaler to weigh."""
    secret = s.secret.name
    return {
        "launcher": s.gang.marked(build.build_launcher_pod(s.job, s.attempt, secret, settings)),
        "workers": s.gang.marked(build.build_worker_pod(s.job, s.attempt, 0, secret, settings=settings)),
    }


def worker_counts(s: Situation, ended: bool) -> dict[str, Any]:
    """Fields of the status that count pods. What a finished job's deleted pods had become stays counted.

    `ended`: whether the job has ended by now; it wants no workers then, and "0/2" would look like trouble.
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
