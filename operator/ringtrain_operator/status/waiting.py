"""Condition Running, which says why a job does not run yet, as reported by the component that blocks the job."""

from __future__ import annotations

from collections.abc import Sequence

from ..build import worker_name
from ..contract import KIND
from ..errors import counted
from ..observe.model import Foreign, Refusal
from ..observe.pods import by_index
from ..placement.own_queue import ROOM, PlacementContender
from ..spec.job import Job
from .model import ConditionChange, JobStatus, format_time, with_conditions
from .progress import is_storable_integer, not_finite_text
from .situation import Situation

# Number of names in a message; the rest are counted.
NAMES_SHOWN = 3
# Before the scheduler's last message, in the message of a condition after it.
_LAST = "; the last answer of the scheduler: "


def running_condition(s: Situation) -> ConditionChange:
    """Return the Running condition of a job that is neither finished nor suspended."""
    if s.status.ledger.queued_since is not None:
        return _queued_condition(s)
    if s.stale_pods:
        return _not_running_condition(
            "WaitingForOldPods",
            "pods of an earlier attempt are still terminating: "
            f"{_counted_pod_names([pod.id.name for pod in s.stale_pods])}",
        )
    # An elastic job continues without a worker; the Degraded condition reports missing ones.
    absent = [] if s.job.spec.elastic is not None and s.gang_began else _absent_pod_names(s)
    gang = _gang_condition(s)
    if not absent and gang.status == "True":
        return gang
    if s.observed.foreign:
        return _foreign_object_condition(s)
    if absent and s.queue.holds:
        return _not_running_condition("WaitingForQueue", queue_wait_text(s))
    if s.gang.problem:
        return _not_running_condition("GangUnavailable", s.gang.problem)
    if s.gang_refusals:
        return refusal_condition(s.gang_refusals)
    start = s.status.ledger.restart_not_before
    if start is not None and s.now < start and not s.pods:
        return _not_running_condition("BackOff", f"attempt {s.attempt} starts at {format_time(start)}")
    stuck = _placement_condition(s) or _stuck_pod_condition(s)
    if stuck is None and absent and s.status.ledger.refused:
        return _refused_condition(f"{s.status.ledger.refused}; the job tries again")
    return stuck or _pending_pods_condition(s, absent) or gang


def _queued_condition(s: Situation) -> ConditionChange:
    """Return the condition of a job that waits in the operator's queue, without numbers that change often."""
    if s.status.ledger.too_large:
        return _too_large_condition(
            s, "the job waits without pods until there are more nodes, or until it requests less"
        )
    if s.status.ledger.refused:
        return _refused_condition(
            f"{s.status.ledger.refused}; the job has released its resources and tries again later"
        )
    ahead = [one.job for one in s.observed.contention.ahead_of(_queued_contender(s))][-NAMES_SHOWN:]
    what = " and ".join(sorted(s.status.ledger.line_wants.keys() - {ROOM})) or "room on nodes"
    place = f"; directly ahead of it in the queue: {', '.join(reversed(ahead))}" if ahead else ", and is next"
    return _not_running_condition("Queued", f"it waits without pods for {what}{place}{_last_unschedulable_text(s)}")


def _last_unschedulable_text(s: Situation) -> str:
    """Return why the scheduler found no node for the last pods, from the condition that the job has now."""
    running = s.status.condition("Running")
    message = running.message if running is not None else ""
    last = message if running is not None and running.reason == "Unschedulable" else message.partition(_LAST)[2]
    return last and f"{_LAST}{last}"


def _too_large_condition(s: Situation, then: str) -> ConditionChange:
    """Return the condition of a job that requests more devices than all nodes have. `then`: what happens now."""
    needs = f"{counted(s.workers_needed, 'worker')} with {devices_text(s.job)} each need more than all nodes"
    return _not_running_condition("TooLarge", f"{needs} of the cluster have; {then}")


def _queued_contender(s: Situation) -> PlacementContender:
    ledger = s.status.ledger
    return PlacementContender(ledger.line_since or s.job.created, s.job.uid, wants=ledger.line_wants)


def devices_text(job: Job) -> str:
    """Return a text with the devices of each worker, such as `2 nvidia.com/gpu`."""
    return " and ".join(f"{amount} {name}" for name, amount in sorted(job.worker_devices.items()))


def queue_wait_text(s: Situation) -> str:
    """Return why a job in a queue of Kueue does not run: its pods still terminate, or Kueue's reason."""
    if s.observed.pods:
        return f"its pods are still terminating: {_counted_pod_names([pod.id.name for pod in s.observed.pods])}"
    return s.queue.waits_for().message


def _placement_condition(s: Situation) -> ConditionChange | None:
    waits = (placement.waits_for() for placement in s.placements)
    return next((_not_running_condition(wait.reason, wait.message) for wait in waits if wait is not None), None)


def _stuck_pod_condition(s: Situation) -> ConditionChange | None:
    stuck = [pod for pod in s.pods if pod.phase == "Pending" and pod.wait.reason]
    if not stuck:
        return None
    first = stuck[0]
    if s.status.ledger.too_large:
        wait = f"for at most {s.job.spec.scheduling.timeout_seconds} s (scheduling.timeoutSeconds)"
        return _too_large_condition(s, f"its pods wait {wait} for more nodes: {first.id.name}: {first.wait.message}")
    others = f" ({counted(len(stuck) - 1, 'more pod')} waiting)" if len(stuck) > 1 else ""
    return _not_running_condition(
        first.wait.reason, f"{first.id.name}: {first.wait.message or first.wait.reason}{others}"
    )


def _absent_pod_names(s: Situation) -> list[str]:
    """Return the names of pods of the gang that do not exist or do not run."""
    return [*s.missing_names, *(pod.id.name for pod in s.pods if pod.phase in ("Pending", "Unknown"))]


def _pending_pods_condition(s: Situation, absent: Sequence[str]) -> ConditionChange | None:
    if not absent:
        return None
    count = f"{len(absent)} of {counted(len(s.wanted_names), 'pod')} not running yet"
    is_placed = s.pods and all(pod.place.node for pod in s.pods)
    text = f"{count}: {_first_pod_names(absent)}{'' if is_placed else _last_unschedulable_text(s)}"
    return _not_running_condition("WaitingForPods", text)


def _gang_condition(s: Situation) -> ConditionChange:
    """Return the condition of a job whose pods all run. The launcher's report decides whether the ranks run."""
    if s.report is not None and s.report.phase == "Waiting" and not s.has_world:
        # An elastic job's launcher lists workers up to the maximum.
        workers = by_index(s.report.workers, s.status.ledger.attempt_workers)
        absent = [worker_name(s.job, index) for index, worker in workers.items() if not worker.get("registered")]
        registered = len(workers) - len(absent)
        count = f"{registered} of {counted(s.status.ledger.attempt_workers, 'worker')} registered"
        return _not_running_condition(
            "WaitingForAgents", count + (f"; not yet: {_first_pod_names(absent)}" if absent else "")
        )
    if s.report is not None or s.status.is_true("Running"):
        return _gang_running_condition(s)
    if s.observed.launcher_unreadable:
        return _not_running_condition("LauncherUnreadable", s.observed.launcher_error)
    cause = f": {s.observed.launcher_error}" if s.observed.launcher_error else ""
    return _not_running_condition("WaitingForLauncher", f"all pods run; the launcher does not answer yet{cause}")


def _gang_running_condition(s: Situation) -> ConditionChange:
    """Return the condition of a job whose ranks run. It names a side container that has failed."""
    unreadable = s.observed.launcher_error if s.observed.launcher_unreadable else ""
    unknown = f"; its progress is unknown: {unreadable}" if unreadable else ""
    wrong = not_finite_text((s.report.progress or {}).get("notFinite")) if s.report is not None else ""
    text = f"attempt {s.attempt} runs{_world_text(s)}{unknown}{wrong and '; '}{wrong}"
    failed = [pod for pod in s.pods if pod.end.side_failure]
    if not failed:
        return ConditionChange("Running", "True", "GangRunning", text)
    others = f", and those of {counted(len(failed) - 1, 'more pod')}" if len(failed) > 1 else ""
    text += f"; in {failed[0].id.name} {failed[0].end.side_failure}{others}"
    return ConditionChange("Running", "True", "SideContainerFailed", text)


def _world_text(s: Situation) -> str:
    """Return a text with the size of the world, and in an elastic job its last known generation; empty if unknown."""
    if s.job.spec.elastic is None:
        return f" with {counted(s.world_size, 'rank')}"
    world = (s.report.elastic if s.report is not None else None) or {}
    formation, ranks = world.get("formation"), world.get("ranks")
    if not formation or not is_storable_integer(formation) or not is_storable_integer(ranks):
        known = s.status.elastic
        formation, ranks = (known.formation, known.ranks) if known is not None else (0, 0)
    return f" with {ranks} of {counted(s.world_size, 'rank')}, generation {formation}" if formation else ""


def refusal_condition(refusals: Sequence[Refusal]) -> ConditionChange:
    """Return the condition for refused create requests, with the API's own message about the first request."""
    others = f" ({len(refusals) - 1} more were refused)" if len(refusals) > 1 else ""
    return _refused_condition(f"{refusals[0]}{others}")


# The only refusal of the API that ends when other jobs release resources.
QUOTA_EXCEEDED = "QuotaExceeded"
# Kubelets' reasons for a wait on a node that may end: an image that may still be pushed, and a registry, a volume's
# server or a node's network that may recover.
NODE_WAITS = frozenset(
    (
        *("ErrImagePull", "ImagePullBackOff", "FailedMount", "FailedAttachVolume", "FailedMapVolume"),
        "FailedCreatePodSandBox",
    )
)


def _refused_condition(words: str) -> ConditionChange:
    known = {"exceeded quota": QUOTA_EXCEEDED, "ImagePull": "ImagePullBackOff"}
    known |= {reason: reason for reason in NODE_WAITS if "ImagePull" not in reason}
    return _not_running_condition(
        next((reason for phrase, reason in known.items() if phrase in words), "CreationRefused"), words
    )


def _foreign_object_condition(s: Situation) -> ConditionChange:
    """Return the condition of a job whose objects cannot be created, because objects of other owners have their names.

    Objects of a deleted job of the same name are deleted without help; all others need the user.
    """
    foreign = s.observed.foreign
    earlier = f"{KIND} {s.job.name}"
    if any(other.owner != earlier for other in foreign):
        return _not_running_condition(
            "NameTaken", _taken_name_text([other for other in foreign if other.owner != earlier])
        )
    names = _counted_pod_names([str(other.ref) for other in foreign])
    return _not_running_condition(
        "WaitingForOldPods", f"an earlier job of this name was deleted and is still terminating: {names}"
    )


def _taken_name_text(foreign: Sequence[Foreign]) -> str:
    first = foreign[0]
    owner = f"{first.owner}" if first.owner else "another owner"
    return f"{first.ref} exists and belongs to {owner}; it is not changed: delete it or give the job another name"


def _first_pod_names(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMES_SHOWN]) + (", …" if len(names) > NAMES_SHOWN else "")


def _counted_pod_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more


def _not_running_condition(reason: str, message: str) -> ConditionChange:
    return ConditionChange("Running", "False", reason, message)


def delegated_status(s: Situation) -> JobStatus:
    """Return the status of a job that MultiKueue runs on another cluster, or the problem that prevents this.

    If the job has no Workload, MultiKueue does not know the job. Then only this status reports the problem.
    """
    if s.attempt > 0 or s.finished or s.job.spec.run_policy.suspend:
        return s.status
    change = _delegation_problem(s)
    if change is None:
        if s.workload is not None or s.status.state is None:
            return s.status
        change = ConditionChange("Running", "False", "WaitingForMultiKueue", "it waits to be run on another cluster")
    status = with_conditions(s.status, (ConditionChange("Accepted", "True", "Valid"), change), s.job.generation, s.now)
    foremost = {"state": "Pending", "reason": change.reason, "message": change.message}
    new = {"observed_generation": s.job.generation, **foremost}
    return status.model_copy(update=new)


def _delegation_problem(s: Situation) -> ConditionChange | None:
    kueue, view = s.observed.kueue, s.workload
    if not s.job.queue:
        message = (
            f"{s.job.spec.managed_by} runs this job, but it sees only jobs in a LocalQueue; set "
            "scheduling.queue, or the label kueue.x-k8s.io/queue-name"
        )
        return ConditionChange("Running", "False", "NoQueue", message)
    if kueue is None or kueue.problem or (view is not None and view.foreign):
        return ConditionChange("Running", "False", "NoWorkload", queue_wait_text(s))
    return None
