"""How an attempt ended: by the launcher's termination message, or by a worker's when the launcher cannot tell.

Whether its node or the job is to blame for a pod that went silent is known when the pod is gone, or its node is.
The gang restarts at once. The next attempt's pods wait for that pod anyway, and until then nothing is counted.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Literal

from ..contract import EXIT_GANG_STOPPED, ROLE_WORKER
from ..observe.model import PodView
from ..observe.pods import failure_in, termination_of
from ..status.decision import NO_DECISION, Decision, Finish, GiveWay, Policy, PolicyResult, Restart
from ..status.model import Failure, JobStatus, LostPod
from ..status.progress import is_status_whole
from ..status.situation import Situation
from ..workers.gang import LAUNCHER_REPORT_S, gang_pod_disruption, node_is_suspect
from ..workers.replacing import launcher_back_by, launcher_loss, worker_incarnations_of
from .failure_rules import judge_failure, limit_reached
from .incomplete import gang_gives_way
from .queueing import missed_suspension

# How long a launcher's "agent lost" waits for the API to say what became of that agent's pod.
POD_FATE_S = 15
# How long after a pod's grace period a kubelet that lives may take to say that it has ended.
ANSWERS_WITHIN_S = 10
# How long the operator may wait for other words on a lost agent or launcher before it judges.
JUDGED_WITHIN_S = 60


def success(s: Situation) -> PolicyResult:
    """The job has succeeded when the launcher attests that every rank of the declared world did; its workers repeat
    that, for when its pod is no more."""
    launcher = s.launcher
    if missed_suspension(s):
        return NO_DECISION
    if launcher is None:
        return _success_by_workers(s)
    if launcher.end.code != 0:
        return NO_DECISION
    termination = termination_of(launcher, s.attempt)
    sizes, every = _declared_world(s, _whole_exit_code(termination.get("worldSize")))
    attested = (
        termination.get("outcome") == "Succeeded"
        and termination.get("worldSize") == termination.get("ranksSucceeded")
        and termination.get("worldSize") in sizes
    )
    if attested:
        warning = termination.get("warning")
        told = f"; {warning}" if isinstance(warning, str) and warning else ""
        return PolicyResult(Finish("Succeeded", "AllRanksSucceeded", f"{every} exited 0{told}"))
    claim = (
        f"it reports {termination.get('ranksSucceeded')} of {termination.get('worldSize')} ranks"
        if termination
        else "it left no termination message; is its command ringtrain launcher?"
    )
    message = f"the launcher exited 0 without attesting {every}: {claim}"
    return PolicyResult(judge_failure(s, failure_with(launcher, s, "WorldIncomplete", message)))


def _success_by_workers(s: Situation) -> PolicyResult:
    """Return the end that workers report if the launcher's pod was removed before its end was read (decision 59).

    An agent exits 0, and writes Succeeded, only when the launcher has told it that the attempt has succeeded. One
    such message will do; without messages the exit codes of all workers.
    """
    ended = [pod for pod in s.workers if pod.finished and pod.end.code == 0]
    outcomes = [termination_of(pod, s.attempt).get("outcome") for pod in ended]
    if "Succeeded" not in outcomes and (any(outcomes) or len(ended) < max(1, s.status.ledger.attempt_workers)):
        return NO_DECISION
    _, every = _declared_world(s, None)
    who = f"{ended[outcomes.index('Succeeded')].id.name} says so" if "Succeeded" in outcomes else "all workers exited 0"
    message = f"{every} exited 0: the launcher's pod was removed before its end was read, and {who}"
    return PolicyResult(Finish("Succeeded", "AllRanksSucceeded", message))


def _declared_world(s: Situation, told: int | None) -> tuple[range, str]:
    """How many ranks must have succeeded, and the same in words. `told`: ranks of the launcher's last world, which
    may have any size within the bounds of an elastic job."""
    elastic, slots = s.job.spec.elastic, s.job.spec.slots
    if elastic is None:
        return range(s.world_size, s.world_size + 1), f"all {s.world_size} ranks" if s.world_size > 1 else "rank 0"
    sizes = range(elastic.min_replicas * slots, elastic.max_replicas * slots + 1)
    if told in sizes:
        return sizes, f"all {told} ranks of the last world" if told != 1 else "the one rank of the last world"
    return sizes, f"a world of {sizes.start} to {sizes.stop - 1} ranks"


def attempt_failure(s: Situation) -> PolicyResult:
    """A launcher that failed ends the attempt; so does a worker that failed and of which no launcher speaks."""
    if s.launcher is not None and s.launcher.finished:
        back_by = launcher_back_by(s, s.launcher)
        if back_by or launcher_loss(s):  # it is made anew, see workers/replacing.py
            return PolicyResult(requeue_at=back_by)
        return _launcher_failed(s, s.launcher)
    if s.job.spec.elastic is not None and s.gang_began:
        return NO_DECISION  # a worker that is lost is made anew, see workers/replacing.py
    failed = [
        pod for pod in s.workers if pod.ended_badly and (s.job.spec.elastic is None or not gang_pod_disruption(pod))
    ]
    if not failed:
        return NO_DECISION
    launcher_may_tell = s.launcher is not None and (s.report is None or s.report.phase != "Waiting")
    first = min(failed, key=lambda pod: (pod.end.code == EXIT_GANG_STOPPED, pod.end.time or s.now, pod.id.index))
    due = (first.end.time or s.now) + timedelta(seconds=LAUNCHER_REPORT_S)
    if launcher_may_tell and first.end.time is not None and s.now < due:
        return PolicyResult(requeue_at=due)
    failure = failure_of(first, s)
    if failure.reason == "LauncherFailed" and s.launcher is not None:  # its agents have not heard of it
        return PolicyResult(judge_failure(s, failure, lost=went_silent(s, s.launcher)))
    return PolicyResult(_judge_outcome(s, failure))


def _launcher_failed(s: Situation, launcher: PodView) -> PolicyResult:
    failure = failure_of(launcher, s)
    if failure.reason == "AgentLost" and s.job.spec.elastic is not None:
        return PolicyResult(judge_failure(s, failure, disrupted=not _failed_by_itself(s, failure.pod)))
    if failure.reason == "AgentLost":
        lost = next((pod for pod in s.workers if pod.id.name == failure.pod), None)
        if lost is not None and lost.finished and lost.end.code not in (None, 0, EXIT_GANG_STOPPED):
            return PolicyResult(_judge_outcome(s, failure_of(lost, s)))
        due = (launcher.end.time or s.now) + timedelta(seconds=POD_FATE_S)
        if lost is not None and not lost.finished:
            if lost.place.node_ready is not False and s.now < due:
                return PolicyResult(requeue_at=due)
            return PolicyResult(judge_failure(s, failure, lost=went_silent(s, lost)))
    return PolicyResult(_judge_outcome(s, failure))


def _failed_by_itself(s: Situation, pod: str | None) -> bool:
    """Whether the pod without which an elastic job could not go on ended by itself, and was not taken away."""
    losses = [loss for loss in worker_incarnations_of(s.status).losses if loss.pod == pod and loss.attempt == s.attempt]
    return bool(losses) and losses[-1].failed


def _judge_outcome(s: Situation, failure: Failure) -> Restart | GiveWay | Finish:
    """As failureRules and backoffLimit say, except that a gang some of whose pods never ran is only waiting still.

    Giving its pods back for a while also resolves two gangs that each hold half of what both need.
    """
    if failure.reason != "NotAssembled":
        return judge_failure(s, failure)
    absent = [*s.missing_names, *(pod.id.name for pod in s.pods if pod.phase == "Pending")]
    if not absent:
        return judge_failure(s, failure)
    placed_together = s.status.ledger.gang_scheduler is not None
    if not placed_together and any(pod.place.unschedulable_since is not None for pod in s.pods):
        return gang_gives_way(s)
    message = f"attempt {s.attempt}: {', '.join(absent[:3])} did not run in time (networking.startTimeoutSeconds)"
    return Restart("NotAssembled", message, failure=failure)


def failure_of(pod: PodView, s: Situation) -> Failure:
    """The failure that a pod's termination message names; without any, what Kubernetes knows about the pod."""
    reported = failure_in(pod, s.attempt)
    if not reported:
        # Our own message without a failure in it is no output of anybody's.
        output = () if termination_of(pod, s.attempt) else pod.end.message.splitlines()[-40:]
        return failure_with(pod, s, *_what_ended(pod, s), output)
    named = next((p for p in s.pods if p.id.name == reported.get("pod")), pod)
    killed = f"; {_out_of_memory(named, s)}" if named.end.reason == "OOMKilled" else ""
    return Failure(
        attempt=s.attempt,
        rank=_whole_exit_code(reported.get("rank")),
        pod=str(reported.get("pod") or pod.id.name),
        node=str(reported.get("node") or named.place.node) or None,
        exit_code=_whole_exit_code(reported.get("exitCode")) if reported.get("exitCode") is not None else pod.end.code,
        signal=str(reported["signal"]) if reported.get("signal") else None,
        reason=str(reported.get("reason") or "RankFailed"),
        message=f"{reported.get('message') or ''}{killed}",
        log_tail=_failure_lines(reported.get("logTail")),
        time=s.now,
    )


def failure_with(pod: PodView, s: Situation, reason: str, message: str, output: Sequence[str] = ()) -> Failure:
    """A failure of which only its pod is known."""
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


def _what_ended(pod: PodView, s: Situation) -> tuple[str, str]:
    """Reason and message for a pod whose agent or launcher has not said what failed."""
    detail = f": {pod.state.message}" if pod.state.message else ""
    if pod.end.beside:
        reason = "InitContainerFailed" if pod.end.beside.startswith("init") else "SideContainerFailed"
        why = f" ({pod.end.reason})" if pod.end.reason not in ("", "Error") else ""
        return reason, f"{pod.end.beside} of {pod.id.name} exited with {pod.end.code}{why}{detail}"
    reason = "LauncherFailed" if pod.id.role == "launcher" else "RankFailed"
    if pod.state.reason == "DeadlineExceeded":
        return reason, f"{pod.id.name} ran longer than its template's activeDeadlineSeconds allows{detail}"
    if pod.end.reason == "OOMKilled":
        return reason, f"{_out_of_memory(pod, s)}{detail}"
    why = pod.end.reason or pod.state.reason or "no reason given"
    return reason, f"{pod.id.name} left no termination message ({why}){detail}"


def _out_of_memory(pod: PodView, s: Situation) -> str:
    """What happened to a pod that was killed for want of memory, and what its container may have."""
    template = s.job.spec.worker.template if pod.id.role == ROLE_WORKER else s.job.spec.launcher.template
    main = (template.get("spec") or {}).get("containers") or [{}]
    limit = ((main[0].get("resources") or {}).get("limits") or {}).get("memory")
    had = f"; its container may have {limit}, set resources.limits.memory" if limit else ""
    return f"{pod.id.name} was killed for want of memory (OOMKilled){had}"


def failure_of_slowest(s: Situation, reason: str, message: str) -> Failure:
    """A failure in which no rank ended: with the slowest rank, its pod, node and last lines, as far as known."""
    reported = s.report.slowest if s.report is not None and s.report.phase == "Running" else None
    failure = Failure(attempt=s.attempt, reason=reason, message=message, time=s.now)
    if not reported or not is_status_whole(reported.get("rank")):
        return failure
    pod, node = str(reported.get("pod") or ""), str(reported.get("node") or "")
    where = " ".join(part for part in (f"in {pod}" if pod else "", f"on {node}" if node else "") if part)
    step = reported.get("step")
    at = f"at step {step}" if is_status_whole(step) else "without a step yet"
    return failure.model_copy(
        update={
            "rank": reported["rank"],
            "pod": pod or None,
            "node": node or None,
            "message": f"{message}; the slowest is rank {reported['rank']}{f' {where}' if where else ''}, {at}",
            "log_tail": _failure_lines(reported.get("logTail")),
        }
    )


def _whole_exit_code(value: object) -> int | None:
    return value if isinstance(value, int) and is_status_whole(value) else None


def _failure_lines(value: object) -> tuple[str, ...]:
    return tuple(str(line) for line in value) if isinstance(value, list) else ()


def outcome_of_lost_pod(s: Situation) -> PolicyResult:
    """A job ends when a pod was lost by its own doing, and no restart is left; until that is known it waits."""
    lost, fate = s.status.ledger.lost_pod, _lost_pod_fate(s)
    if lost is None or fate == "node":
        return NO_DECISION
    if fate == "job":
        failure = s.status.failure if _is_over(s) else None
        return PolicyResult(limit_reached(s, failure)) if failure is not None else NO_DECISION
    pod = _pod_of_lost(s, lost)
    due = pod.deletion_time if pod is not None and pod.deletion_time is not None else s.now
    return PolicyResult(requeue_at=max(due, s.now) + timedelta(seconds=ANSWERS_WITHIN_S))


def note_lost_pod(s: Situation, decision: Decision | None) -> JobStatus:
    """The status with the pod that was lost, until it is known why; then with what that counts for."""
    if isinstance(decision, Restart) and decision.lost is not None:
        return s.status.noted(lost_pod=decision.lost)
    if s.finished or isinstance(decision, Finish):
        return s.status.noted(lost_pod=None)
    fate = _lost_pod_fate(s)
    if fate is None or (fate == "job" and _is_over(s)):
        return s.status
    count = {"disruptions": s.status.disruptions + 1} if fate == "node" else {"restarts": s.status.restarts + 1}
    return s.status.model_copy(update=count).noted(lost_pod=None)


def went_silent(s: Situation, pod: PodView) -> LostPod:
    """What is noted of a pod that nobody has heard of for as long as anybody waits."""
    silent = timedelta(seconds=s.job.spec.networking.timeout_seconds + JUDGED_WITHIN_S)
    return LostPod(uid=pod.id.uid, pod=pod.id.name, node=pod.place.node or None, since=s.now - silent)


def _lost_pod_fate(s: Situation) -> Literal["node", "job"] | None:
    """Who took the pod; None: that is not known yet, or there is none.

    A kubelet that lives ends the pod in its time and says so; a node that was not ready meanwhile has lost it.
    """
    lost = s.status.ledger.lost_pod
    if lost is None:
        return None
    pod, ready = _pod_of_lost(s, lost), s.observed.nodes_ready.get(lost.node or "")
    if ready is False or (pod is not None and node_is_suspect(pod)):
        return "node"
    if pod is None:
        return "job"
    overdue = pod.deletion_time is not None and s.now >= pod.deletion_time + timedelta(seconds=ANSWERS_WITHIN_S)
    return "node" if overdue and ready is None else None


def _pod_of_lost(s: Situation, lost: LostPod) -> PodView | None:
    return next((pod for pod in s.observed.pods if pod.id.uid == lost.uid), None)


def _is_over(s: Situation) -> bool:
    return s.status.restarts >= s.job.spec.run_policy.backoff_limit


SUCCESS = Policy(success)
FAILURE = Policy(attempt_failure)
LOST_POD = Policy(outcome_of_lost_pod, note_lost_pod)
