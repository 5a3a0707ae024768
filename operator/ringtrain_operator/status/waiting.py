"""Why a job does not run yet, in the words of whoever holds it up."""

from __future__ import annotations

from collections.abc import Sequence

from ..build import worker_name
from ..contract import KIND
from ..observe.model import Foreign, Refusal
from ..observe.pods import by_index
from ..placement.line import ROOM, PlacementContender
from ..spec.job import Job
from .model import ConditionChange, JobStatus, format_time, with_conditions
from .progress import is_status_whole
from .situation import Situation, counted

# Named in a message; the rest are counted. A message with a thousand names helps nobody.
NAMES_SHOWN = 3


def running_or_why_not(s: Situation) -> ConditionChange:
    """The Running condition of a job that is neither finished nor suspended."""
    if s.status.ledger.queued_since is not None:
        return _queued_reason(s)
    if s.stale_pods:
        return _not_running_condition(
            "WaitingForOldPods",
            f"pods of an earlier attempt are still ending: {_counted_pod_names([pod.id.name for pod in s.stale_pods])}",
        )
    # An elastic job goes on without a worker: what is missing is said in the Degraded condition.
    absent = [] if s.job.spec.elastic is not None and s.gang_began else _waiting_for_absent_pods(s)
    gang = _waiting_for_gang_reason(s)
    if not absent and gang.status == "True":
        return gang
    if s.observed.foreign:
        return _foreign_object_reason(s)
    if absent and s.queue.holds:
        return _not_running_condition("WaitingForQueue", queued_because(s))
    if s.gang.problem:
        return _not_running_condition("GangUnavailable", s.gang.problem)
    if s.gang_refusals:
        return refused_because(s.gang_refusals)
    start = s.status.ledger.restart_not_before
    if start is not None and s.now < start and not s.pods:
        return _not_running_condition("BackOff", f"attempt {s.attempt} starts at {format_time(start)}")
    return _waiting_for_place_reason(s) or _stuck_pod(s) or _pending_pods(s, absent) or gang


def _queued_reason(s: Situation) -> ConditionChange:
    """Why a job waits without pods. No numbers: what changes would have to be written again and again."""
    if s.status.ledger.too_large:
        return _not_running_condition(
            "TooLarge",
            f"{counted(s.workers_needed, 'worker')} with {devices_text(s.job)} each are more than all nodes of "
            "the cluster have room for; the job waits without pods until there are more nodes, or until it "
            "asks for less",
        )
    if s.status.ledger.refused:
        return _waiting_pods_not_made(
            f"{s.status.ledger.refused}; it has given back what it had, and tries again in some time"
        )
    ahead = [one.job for one in s.observed.contention.ahead_of(_waiting_in_line_reason(s))][-NAMES_SHOWN:]
    what = " and ".join(sorted(s.status.ledger.line_wants.keys() - {ROOM})) or "room on nodes"
    place = f"; directly ahead of it in the line: {', '.join(reversed(ahead))}" if ahead else ", and is next"
    return _not_running_condition("Queued", f"it waits without pods for {what}{place}")


def _waiting_in_line_reason(s: Situation) -> PlacementContender:
    ledger = s.status.ledger
    return PlacementContender(ledger.line_since or s.job.created, s.job.uid, wants=ledger.line_wants)


def devices_text(job: Job) -> str:
    """What each worker needs of extended resources: `2 nvidia.com/gpu`."""
    return " and ".join(f"{amount} {name}" for name, amount in sorted(job.worker_devices.items()))


def queued_because(s: Situation) -> str:
    """What a job in a queue waits for, in Kueue's words where it has any."""
    if s.observed.pods:
        return f"its pods are still ending: {_counted_pod_names([pod.id.name for pod in s.observed.pods])}"
    return s.queue.waits_for().message


def _waiting_for_place_reason(s: Situation) -> ConditionChange | None:
    waits = (placement.waits_for() for placement in s.placements)
    return next((_not_running_condition(wait.reason, wait.message) for wait in waits if wait is not None), None)


def _stuck_pod(s: Situation) -> ConditionChange | None:
    stuck = [pod for pod in s.pods if pod.phase == "Pending" and pod.wait.reason]
    if not stuck:
        return None
    first = stuck[0]
    others = f" ({counted(len(stuck) - 1, 'more pod')} waiting)" if len(stuck) > 1 else ""
    return _not_running_condition(
        first.wait.reason, f"{first.id.name}: {first.wait.message or first.wait.reason}{others}"
    )


def _waiting_for_absent_pods(s: Situation) -> list[str]:
    """Pods that do not run, or do not exist."""
    return [*s.missing_names, *(pod.id.name for pod in s.pods if pod.phase in ("Pending", "Unknown"))]


def _pending_pods(s: Situation, absent: Sequence[str]) -> ConditionChange | None:
    if not absent:
        return None
    count = f"{len(absent)} of {counted(len(s.wanted_names), 'pod')} not running yet"
    return _not_running_condition("WaitingForPods", f"{count}: {_first_pod_names(absent)}")


def _waiting_for_gang_reason(s: Situation) -> ConditionChange:
    """All pods run; whether the gang does is for its launcher to say."""
    if s.report is not None and s.report.phase == "Waiting" and not s.has_world:
        # An elastic job's launcher tells of as many as there may ever be.
        workers = by_index(s.report.workers, s.status.ledger.attempt_workers)
        absent = [worker_name(s.job, index) for index, worker in workers.items() if not worker.get("registered")]
        registered = len(workers) - len(absent)
        count = f"{registered} of {counted(s.status.ledger.attempt_workers, 'worker')} registered"
        return _not_running_condition(
            "WaitingForAgents", count + (f"; not yet: {_first_pod_names(absent)}" if absent else "")
        )
    if s.report is not None or s.status.is_true("Running"):
        return _running_reason(s)
    if s.observed.launcher_unreadable:
        return _not_running_condition("LauncherUnreadable", s.observed.launcher_error)
    cause = f": {s.observed.launcher_error}" if s.observed.launcher_error else ""
    return _not_running_condition("WaitingForLauncher", f"all pods run; the launcher does not answer yet{cause}")


def _running_reason(s: Situation) -> ConditionChange:
    """The gang runs, perhaps without what a side container did for it."""
    unreadable = s.observed.launcher_error if s.observed.launcher_unreadable else ""
    unknown = f"; its progress is not known: {unreadable}" if unreadable else ""
    text = f"attempt {s.attempt} runs with {_waiting_for_world_reason(s)}{unknown}"
    failed = [pod for pod in s.pods if pod.end.side_failure]
    if not failed:
        return ConditionChange("Running", "True", "GangRunning", text)
    others = f", and those of {counted(len(failed) - 1, 'more pod')}" if len(failed) > 1 else ""
    text += f"; in {failed[0].id.name} {failed[0].end.side_failure}{others}"
    return ConditionChange("Running", "True", "SideContainerFailed", text)


def _waiting_for_world_reason(s: Situation) -> str:
    """How large the world is, and which one it is."""
    said = (s.report.elastic if s.report is not None else None) or {}
    formation, ranks = said.get("formation"), said.get("ranks")
    if s.job.spec.elastic is None or not formation or not is_status_whole(formation) or not is_status_whole(ranks):
        return counted(s.world_size, "rank")
    return f"{ranks} of {counted(s.world_size, 'rank')}, formation {formation}"


def refused_because(refusals: Sequence[Refusal]) -> ConditionChange:
    """What the API refuses and why, in its words."""
    first = refusals[0]
    others = f" ({len(refusals) - 1} more were refused)" if len(refusals) > 1 else ""
    return _waiting_pods_not_made(f"the API refused {first.ref} ({first.code} {first.reason}): {first.message}{others}")


def _waiting_pods_not_made(words: str) -> ConditionChange:
    known = {"exceeded quota": "QuotaExceeded", "ImagePull": "ImagePullBackOff"}
    return _not_running_condition(
        next((reason for said, reason in known.items() if said in words), "CreationRefused"), words
    )


def _foreign_object_reason(s: Situation) -> ConditionChange:
    """Objects of our names that are another's; those of a deleted job of this name go by themselves."""
    foreign = s.observed.foreign
    earlier = f"{KIND} {s.job.name}"
    if any(other.owner != earlier for other in foreign):
        return _not_running_condition(
            "NameTaken", _waiting_for_taken_name_reason([other for other in foreign if other.owner != earlier])
        )
    names = _counted_pod_names([str(other.ref) for other in foreign])
    return _not_running_condition(
        "WaitingForOldPods", f"an earlier job of this name was deleted and is still ending: {names}"
    )


def _waiting_for_taken_name_reason(foreign: Sequence[Foreign]) -> str:
    first = foreign[0]
    owner = f"{first.owner}" if first.owner else "somebody else"
    return f"{first.ref} exists and belongs to {owner}; it is left alone: remove it or give the job another name"


def _first_pod_names(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMES_SHOWN]) + (", …" if len(names) > NAMES_SHOWN else "")


def _counted_pod_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more


def _not_running_condition(reason: str, message: str) -> ConditionChange:
    return ConditionChange("Running", "False", reason, message)


def kept_here(s: Situation) -> JobStatus:
    """The status with what keeps a job that has not begun from getting to another cluster, if anything does.

    Nobody else says so: without a Workload MultiKueue knows nothing of the job.
    """
    if s.attempt > 0 or s.finished or s.job.spec.run_policy.suspend:
        return s.status
    said = _not_handed_over(s)
    if said is None:
        if s.workload is not None or s.status.state is None:
            return s.status
        said = ConditionChange("Running", "False", "WaitingForMultiKueue", "it is to run on another cluster")
    status = with_conditions(s.status, (ConditionChange("Accepted", "True", "Valid"), said), s.job.generation, s.now)
    new = {"observed_generation": s.job.generation, "state": "Pending", "reason": said.reason}
    return status.model_copy(update=new)


def _not_handed_over(s: Situation) -> ConditionChange | None:
    kueue, view = s.observed.kueue, s.workload
    if not s.job.queue:
        message = (
            f"{s.job.spec.managed_by} is to run the job, and gets to know only jobs in a LocalQueue; name one in "
            "scheduling.queue, or in the label kueue.x-k8s.io/queue-name"
        )
        return ConditionChange("Running", "False", "NoQueue", message)
    if kueue is None or kueue.problem or (view is not None and view.foreign):
        return ConditionChange("Running", "False", "NoWorkload", queued_because(s))
    return None
