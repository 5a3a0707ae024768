"""Outcome of an attempt, read from the launcher's termination message, or else from those of the workers.

A pod that went silent may be the fault of its node or of the job. This is known when the pod is deleted or the node is
not ready. The gang restarts at once, and the restart is counted when it is known. The next attempt's pods wait for the
silent pod in any case.
"""

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Literal

from ..contract import EXIT_GANG_STOPPED, KILLED_FOR_MEMORY, ROLE_WORKER
from ..errors import counted
from ..observe.model import PodView
from ..observe.pods import failure_in, termination_of
from ..status.decision import NO_DECISION, Decision, Finish, GiveWay, Policy, PolicyResult, Restart
from ..status.ledger import LostPod
from ..status.model import Failure, JobStatus
from ..status.progress import is_storable_integer
from ..status.situation import Situation
from ..workers.gang import LAUNCHER_REPORT_S, gang_pod_disruption, is_node_suspect
from ..workers.incarnations import incarnations_of
from ..workers.launcher_pod import launcher_loss, launcher_restart_deadline
from .failure_rules import judge_failure, limit_reached_decision
from .incomplete import give_way_decision
from .queueing import missed_suspension

# Messages of container runtimes about a command that an image does not have, or that is no program.
NO_PROGRAM = re.compile(r"exec(: |utable file).*(not found|no such file|permission denied)", re.IGNORECASE)
# Time for the API to show the state of the pod of an agent that the launcher reports as lost.
POD_FATE_S = 15
# Time for a live kubelet, after a pod's grace period, to report that the pod has ended.
ANSWERS_WITHIN_S = 10
# Reasons with which containerd and dockershim report a container that could not be started.
_UNSTARTED = frozenset({"StartError", "ContainerCannotRun"})
# Time for other information about a lost agent or launcher to arrive before the operator decides.
JUDGED_WITHIN_S = 60


def success(s: Situation) -> PolicyResult:
    """Finish the job as Succeeded if the launcher reports that every expected rank has succeeded. Exit code 0 without
    such a report is a failure.

    If the launcher's pod is deleted, the workers' termination messages count.
    """
    launcher = s.launcher
    if missed_suspension(s):
        return NO_DECISION
    if launcher is None:
        return _success_by_workers(s)
    if launcher.end.code != 0:
        return NO_DECISION
    termination = termination_of(launcher, s.attempt)
    sizes, every = _declared_world(s, _storable_integer(termination.get("worldSize")))
    attested = (
        termination.get("outcome") == "Succeeded"
        and termination.get("worldSize") == termination.get("ranksSucceeded")
        and termination.get("worldSize") in sizes
    )
    if attested:
        warning = termination.get("warning")
        suffix = f"; {warning}" if isinstance(warning, str) and warning else ""
        return PolicyResult(Finish("Succeeded", "AllRanksSucceeded", f"{every} exited 0{suffix}"))
    claim = (
        f"it reports {termination.get('ranksSucceeded')} of {counted(termination.get('worldSize', 0), 'rank')}"
        if termination
        else "it left no termination message; check that its command is ringtrain launcher"
    )
    message = f"the launcher exited 0 without attesting {every}: {claim}"
    return PolicyResult(judge_failure(s, failure_with(launcher, s, "WorldIncomplete", message)))


def _success_by_workers(s: Situation) -> PolicyResult:
    """Finish the job as Succeeded if its workers report success and the launcher's pod no longer exists.

    An agent exits 0 and writes Succeeded only after the launcher has confirmed the attempt's success. One such message
    suffices; without messages the exit codes of all workers count.
    """
    ended = [pod for pod in s.workers if pod.finished and pod.end.code == 0]
    outcomes = [termination_of(pod, s.attempt).get("outcome") for pod in ended]
    if "Succeeded" not in outcomes and (any(outcomes) or len(ended) < max(1, s.status.ledger.attempt_workers)):
        return NO_DECISION
    _, every = _declared_world(s, None)
    who = (
        f"{ended[outcomes.index('Succeeded')].id.name} reports it"
        if "Succeeded" in outcomes
        else "all workers exited 0"
    )
    message = f"{every} exited 0: the launcher's pod was deleted before its end was read, but {who}"
    return PolicyResult(Finish("Succeeded", "AllRanksSucceeded", message))


def _declared_world(s: Situation, reported: int | None) -> tuple[range, str]:
    """Return how many ranks must have succeeded: a range of valid world sizes, and a text for messages.

    `reported`: ranks of the launcher's last world. In an elastic job any size within the bounds is valid.
    """
    elastic, slots = s.job.spec.elastic, s.job.spec.slots
    if elastic is None:
        return range(s.world_size, s.world_size + 1), f"all {s.world_size} ranks" if s.world_size > 1 else "rank 0"
    sizes = range(elastic.min_replicas * slots, elastic.max_replicas * slots + 1)
    if reported in sizes:
        return sizes, f"all {reported} ranks of the last world" if reported != 1 else "the one rank of the last world"
    return sizes, f"a world of {sizes.start} to {sizes.stop - 1} ranks"


def attempt_failure(s: Situation) -> PolicyResult:
    """End the attempt if the launcher has failed, or a worker has failed and no launcher reports about it."""
    if s.launcher is not None and s.launcher.finished:
        back_by = launcher_restart_deadline(s, s.launcher)
        if back_by or launcher_loss(s):  # it is replaced, see workers/replacing.py
            return PolicyResult(requeue_at=back_by)
        return _launcher_failed(s, s.launcher)
    if s.job.spec.elastic is not None and s.gang_began:
        return NO_DECISION  # a lost worker is replaced, see workers/replacing.py
    failed = [
        pod for pod in s.workers if pod.ended_badly and (s.job.spec.elastic is None or not gang_pod_disruption(pod))
    ]
    if not failed:
        return NO_DECISION
    launcher_may_report = s.launcher is not None and (s.report is None or s.report.phase != "Waiting")
    first = min(failed, key=lambda pod: (pod.end.code == EXIT_GANG_STOPPED, pod.end.time or s.now, pod.id.index))
    due = (first.end.time or s.now) + timedelta(seconds=LAUNCHER_REPORT_S)
    if launcher_may_report and first.end.time is not None and s.now < due:
        return PolicyResult(requeue_at=due)
    failure = failure_of(first, s)
    if failure.reason == "LauncherFailed" and s.launcher is not None:  # its agents lost contact with it
        return PolicyResult(judge_failure(s, failure, lost=silent_pod_record(s, s.launcher)))
    return PolicyResult(_judge_outcome(s, failure))


def _launcher_failed(s: Situation, launcher: PodView) -> PolicyResult:
    due = (launcher.end.time or s.now) + timedelta(seconds=POD_FATE_S)
    if termination_of(launcher, s.attempt).get("outcome") == "Stopped":  # why is in a worker's pod, perhaps later
        ended = [pod for pod in s.workers if pod.ended_badly]
        if s.workers and not ended and s.now < due:
            return PolicyResult(requeue_at=due)
        return PolicyResult(_judge_outcome(s, failure_of(ended[0] if ended else launcher, s)))
    failure = failure_of(launcher, s)
    if failure.reason == "AgentLost" and s.job.spec.elastic is not None:
        return PolicyResult(judge_failure(s, failure, disrupted=not _failed_by_itself(s, failure.pod)))
    if failure.reason == "AgentLost":
        lost = next((pod for pod in s.workers if pod.id.name == failure.pod), None)
        if lost is not None and lost.finished and lost.end.code not in (None, 0, EXIT_GANG_STOPPED):
            return PolicyResult(_judge_outcome(s, failure_of(lost, s)))
        if lost is not None and not lost.finished:
            if lost.place.node_ready is not False and s.now < due:
                return PolicyResult(requeue_at=due)
            return PolicyResult(judge_failure(s, failure, lost=silent_pod_record(s, lost)))
    return PolicyResult(_judge_outcome(s, failure))


def _failed_by_itself(s: Situation, pod: str | None) -> bool:
    """Return whether the pod whose loss ended an elastic job's attempt has failed, and was not removed."""
    losses = [loss for loss in incarnations_of(s.status).losses if loss.pod == pod and loss.attempt == s.attempt]
    return bool(losses) and losses[-1].failed


def _judge_outcome(s: Situation, failure: Failure) -> Restart | GiveWay | Finish:
    """Decide about a failed attempt by failureRules and backoffLimit; if some pods of the attempt never ran, the job
    waits again.

    Deleting the job's pods for a while also resolves a deadlock of two gangs that each have half of what both need.
    """
    if failure.reason != "NotAssembled":
        return judge_failure(s, failure)
    absent = [*s.missing_names, *(pod.id.name for pod in s.pods if pod.phase == "Pending")]
    if not absent:
        return judge_failure(s, failure)
    placed_together = s.status.ledger.gang_scheduler is not None
    if not placed_together and any(pod.place.unschedulable_since is not None for pod in s.pods):
        return give_way_decision(s)
    message = f"attempt {s.attempt}: {', '.join(absent[:3])} did not run in time (networking.startTimeoutSeconds)"
    return Restart("NotAssembled", message, failure=failure)


def failure_of(pod: PodView, s: Situation) -> Failure:
    """Return the failure in the pod's termination message; if it reports none, the one in the pod's status."""
    reported = failure_in(pod, s.attempt)
    if not reported:
        # A termination message of the launcher or agent without a failure is not output of the program.
        output = () if termination_of(pod, s.attempt) else pod.end.message.splitlines()[-40:]
        return failure_with(pod, s, *_end_reason_and_message(pod, s), output)
    named = next((p for p in s.pods if p.id.name == reported.get("pod")), pod)
    message = str(reported.get("message") or "")
    if KILLED_FOR_MEMORY in message:  # the agent knows it before the pod's status does
        message += _memory_limit_text(named, s)
    elif named.end.reason == "OOMKilled":
        message += f"; {_out_of_memory(named, s)}"
    return Failure(
        attempt=s.attempt,
        rank=_storable_integer(reported.get("rank")),
        pod=str(reported.get("pod") or pod.id.name),
        node=str(reported.get("node") or named.place.node) or None,
        exit_code=_storable_integer(reported.get("exitCode")) if reported.get("exitCode") is not None else pod.end.code,
        signal=str(reported["signal"]) if reported.get("signal") else None,
        reason=str(reported.get("reason") or "RankFailed"),
        message=message,
        log_tail=_failure_lines(reported.get("logTail")),
        time=s.now,
    )


def failure_with(pod: PodView, s: Situation, reason: str, message: str, output: Sequence[str] = ()) -> Failure:
    """Return a failure of `pod` with `reason` and `message`, but without a rank."""
    return Failure(
        attempt=s.attempt,
        pod=pod.id.name,
        node=pod.place.node or None,
        exit_code=pod.end.code,
        reason=reason,
        message=message,
        log_tail=tuple(output),
        time=s.now,
    )


def _end_reason_and_message(pod: PodView, s: Situation) -> tuple[str, str]:
    """Return reason and message for a failed pod without a report from its agent or launcher."""
    detail = f": {pod.state.message}" if pod.state.message else ""
    if missing := NO_PROGRAM.search(pod.end.message) if pod.end.reason in _UNSTARTED else None:
        return "CannotStart", f"{pod.end.other_container or 'main container'} of {pod.id.name}: {missing[0]}"
    if pod.end.other_container:
        reason = "InitContainerFailed" if pod.end.other_container.startswith("init") else "SideContainerFailed"
        why = f" ({pod.end.reason})" if pod.end.reason not in ("", "Error") else ""
        return reason, f"{pod.end.other_container} of {pod.id.name} exited with {pod.end.code}{why}{detail}"
    reason = "LauncherFailed" if pod.id.role == "launcher" else "RankFailed"
    if pod.state.reason == "DeadlineExceeded":
        return reason, f"{pod.id.name} ran longer than its template's activeDeadlineSeconds allows{detail}"
    if pod.end.reason == "OOMKilled":
        return reason, f"{_out_of_memory(pod, s)}{detail}"
    if termination_of(pod, s.attempt).get("outcome") == "Stopped":
        reason = reason if pod.id.role == "launcher" else "AgentLost"
        return reason, f"{pod.id.name} was stopped by a signal{detail}"
    why = pod.end.reason or pod.state.reason or "Kubernetes gives no reason"
    return reason, f"{pod.id.name} left no termination message ({why}){detail}"


def _out_of_memory(pod: PodView, s: Situation) -> str:
    """Return a message about a pod that was killed for lack of memory, with the container's limit."""
    return f"{pod.id.name} was killed because it ran out of memory (OOMKilled){_memory_limit_text(pod, s)}"


def _memory_limit_text(pod: PodView, s: Situation) -> str:
    """Return the memory limit of a pod's main container for a message; empty if it has none."""
    spec, is_worker = s.job.spec, pod.id.role == ROLE_WORKER
    template = spec.worker.template_of(pod.id.index) if is_worker else spec.launcher.template
    main = (template.get("spec") or {}).get("containers") or [{}]
    limit = ((main[0].get("resources") or {}).get("limits") or {}).get("memory")
    return f"; its container may have {limit}, raise resources.limits.memory" if limit else ""


def failure_of_slowest(s: Situation, reason: str, message: str) -> Failure:
    """Return a failure that names the slowest rank, its pod and node, because no rank has ended."""
    reported = s.report.slowest if s.report is not None and s.report.phase == "Running" else None
    failure = Failure(attempt=s.attempt, reason=reason, message=message, time=s.now)
    if not reported or not is_storable_integer(reported.get("rank")):
        return failure
    pod, node = str(reported.get("pod") or ""), str(reported.get("node") or "")
    where = " ".join(part for part in (f"in {pod}" if pod else "", f"on {node}" if node else "") if part)
    step = reported.get("step")
    at = f"at step {step}" if is_storable_integer(step) else "without a step yet"
    return failure.model_copy(
        update={
            "rank": reported["rank"],
            "pod": pod or None,
            "node": node or None,
            "message": f"{message}; the slowest is rank {reported['rank']}{f' {where}' if where else ''}, {at}",
            "log_tail": _failure_lines(reported.get("logTail")),
        }
    )


def _storable_integer(value: object) -> int | None:
    return value if isinstance(value, int) and is_storable_integer(value) else None


def _failure_lines(value: object) -> tuple[str, ...]:
    return tuple(str(line) for line in value) if isinstance(value, list) else ()


def outcome_of_lost_pod(s: Situation) -> PolicyResult:
    """Finish the job if the job, not the node, is at fault for a lost pod and no restart is left.

    While the fault is unknown (see `_fault_of_lost_pod`), return only the time of the next check.
    """
    lost, fate = s.status.ledger.lost_pod, _fault_of_lost_pod(s)
    if lost is None or fate == "node":
        return NO_DECISION
    if fate == "job":
        failure = s.status.failure if _is_limit_reached(s) else None
        return PolicyResult(limit_reached_decision(s, failure)) if failure is not None else NO_DECISION
    pod = _pod_of_lost(s, lost)
    due = pod.deletion_time if pod is not None and pod.deletion_time is not None else s.now
    return PolicyResult(requeue_at=max(due, s.now) + timedelta(seconds=ANSWERS_WITHIN_S))


def record_lost_pod(s: Situation, decision: Decision | None) -> JobStatus:
    """Return the status with a lost pod in its ledger until it is known whether the pod's node is at fault. Then count
    a disruption if the node is at fault, or a restart if the job is."""
    if isinstance(decision, Restart) and decision.lost is not None:
        return s.status.with_ledger(lost_pod=decision.lost)
    if s.finished or isinstance(decision, Finish):
        return s.status.with_ledger(lost_pod=None)
    fate = _fault_of_lost_pod(s)
    if fate is None or (fate == "job" and _is_limit_reached(s)):
        return s.status
    count = {"disruptions": s.status.disruptions + 1} if fate == "node" else {"restarts": s.status.restarts + 1}
    return s.status.model_copy(update=count).with_ledger(lost_pod=None)


def silent_pod_record(s: Situation, pod: PodView) -> LostPod:
    """Return the entry of status.ledger for a pod that was silent for the whole timeout."""
    silent = timedelta(seconds=s.job.spec.networking.timeout_seconds + JUDGED_WITHIN_S)
    return LostPod(uid=pod.id.uid, pod=pod.id.name, node=pod.place.node or None, since=s.now - silent)


def _fault_of_lost_pod(s: Situation) -> Literal["node", "job"] | None:
    """Return "node" or "job", whichever is at fault for the lost pod in status.ledger; None if unknown.

    A live kubelet ends the pod within its grace period and reports it; a node that was not ready meanwhile is at fault.
    """
    lost = s.status.ledger.lost_pod
    if lost is None:
        return None
    pod, ready = _pod_of_lost(s, lost), s.observed.nodes_ready.get(lost.node or "")
    if ready is False or (pod is not None and is_node_suspect(pod)):
        return "node"
    if pod is None:
        return "job"
    overdue = pod.deletion_time is not None and s.now >= pod.deletion_time + timedelta(seconds=ANSWERS_WITHIN_S)
    return "node" if overdue and ready is None else None


def _pod_of_lost(s: Situation, lost: LostPod) -> PodView | None:
    return next((pod for pod in s.observed.pods if pod.id.uid == lost.uid), None)


def _is_limit_reached(s: Situation) -> bool:
    return s.status.restarts >= s.job.spec.run_policy.backoff_limit


SUCCESS = Policy(success)
FAILURE = Policy(attempt_failure)
LOST_POD = Policy(outcome_of_lost_pod, record_lost_pod)
