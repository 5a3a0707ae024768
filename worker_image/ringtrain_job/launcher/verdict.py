"""Pure functions that find the first cause of a job's failure: the rank or the agent that failed first.

When one rank dies, the others notice within milliseconds (their connection breaks) or at their deadline (it hangs),
raise PeerLost and exit with 1. The first report is therefore not always the cause. The rules, in this order:

1. A rank killed by a signal that is never sent as a consequence (SIGKILL, SIGSEGV, …) within the settle window,
   unless it had raised PeerLost by then.
2. An agent that was silent, or was ordered to stop, by then: its ranks are lost, whatever other ranks report. If the
   whole job is stopped, orders for other workers and the launcher may follow: an order counts half of the settle window
   after the last one. If all agents were ordered to stop, the attempt was stopped, and no worker is the cause.
3. Of the ranks that failed by an error of the program, the one that ended first. If the launcher's command ended with
   the code of one of them, that one: a command that starts ranks stops all of them when one fails, and the others may
   end before it does.
4. If all failed ranks only lost a peer: the rank that they name, which may still run (it hangs).
5. Otherwise the rank that ended first.
"""

import math
import re
import signal
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from ringtrain.errors import GOES_ON, counted, in_ranges
from ringtrain.shared import contract
from ringtrain_job.control.model import ENDED, Failure, Outcome, RankPhase, RankState, Reason, Verdict

# Signals that a process raises or sends because a peer was lost, or that stop it in an orderly way.
_SOFT_SIGNALS = frozenset({"SIGABRT", "SIGPIPE", "SIGTERM", "SIGINT", "SIGHUP"})
# A shell's codes for a program that cannot be executed and for one that does not exist: a mistyped command.
_NOT_EXECUTED = frozenset({126, 127})
_AS_MANY_STEPS = (
    "; give every rank the same number of steps (ringtrain.data.shard), or let ranks that finish first wait (join of "
    "ringtrain.torch and ringtrain.tensorflow)"
)
_PEER_LOST = re.compile(r"\bPeerLost\b(.*)")
_RANK = re.compile(r"\brank (\d+)\b")


@dataclass(frozen=True)
class RankExit:
    """Exit of a rank. `at`: seconds on the launcher's monotonic clock."""

    state: RankState
    at: float


@dataclass(frozen=True)
class WorkerView:
    """State of one worker as the launcher knows it.

    `silent_since`: time of the last call of the worker's agent, or None if the agent is attached now. `leaving`: signal
    that ordered the pod to stop. `pod_uid`, `node`: empty before the agent has registered.
    """

    index: int
    pod: str
    node: str = ""
    silent_since: float | None = None
    leaving: str = ""
    leaving_since: float = 0.0
    pod_uid: str = ""


@dataclass(frozen=True)
class GangView:
    """States of all workers and ranks at one time. `exits`: exits of ranks that have ended.

    `placed`: worker of each rank that the launcher's command has started, which may differ from the rank order.
    `command_code`: exit code of the launcher's command; None while it runs, or without one. `members`: in an elastic
    job, where `ranks` are slots, the slots by rank.
    """

    slots: int
    workers: Sequence[WorkerView]
    ranks: Sequence[RankState]
    exits: Sequence[RankExit]
    placed: Mapping[int, int] = field(default_factory=dict)
    command_code: int | None = None
    members: Sequence[int] = ()

    def lost_by(self, state: RankState) -> int | None:
        """Return the rank (in an elastic job: the slot) that `state` names as its lost peer; None if it names none."""
        if not self.members:
            return lost_peer(state.log_tail, state.rank)
        own = self.members.index(state.rank) if state.rank in self.members else -1
        lost = lost_peer(state.log_tail, own)
        return self.members[lost] if lost is not None and lost < len(self.members) else lost

    def worker_of(self, rank: int) -> WorkerView:
        """Return the worker on which `rank` runs."""
        return self.workers[self.placed.get(rank, rank // self.slots)]

    def ranks_of(self, worker: WorkerView) -> Sequence[int]:
        """Return the ranks that run on `worker`."""
        return [rank for rank in range(len(self.ranks)) if self.worker_of(rank) is worker]

    @cached_property
    def succeeded(self) -> int:
        """Number of ranks that exited with 0."""
        well = RankPhase.SUCCEEDED
        return sum(state.phase is well for state in self.ranks)


@dataclass(frozen=True)
class VerdictPatience:
    """Seconds to wait before a verdict: `lost_after_s` for a silent agent, `settle_s` after the first failed exit."""

    lost_after_s: float
    settle_s: float


def lost_peer(tail: Sequence[str], own_rank: int) -> int | None:
    """Return the rank that the last PeerLost in `tail`, the last log lines of rank `own_rank`, names as lost.

    Return None if there is no PeerLost, if it names only `own_rank`, or if the rank continued after it: then the loss
    is not the reason why the rank ended.
    """
    for line in reversed(tail):
        if GOES_ON in line:
            return None
        found = _PEER_LOST.search(line)
        if found:
            named = [int(rank) for rank in _RANK.findall(found.group(1))]
            return next((rank for rank in named if rank != own_rank), None)
    return None


def decide_verdict(view: GangView, now: float, patience: VerdictPatience) -> Verdict | None:
    """Return the verdict on an attempt at time `now`; None while it is undecided."""
    failed = failures_by_time(view.exits)
    orders = [worker.leaving_since for worker in view.workers if worker.leaving]
    first_order = min(orders, default=math.inf)
    # A rank that ends with 0 after its pod was ordered to stop may have stopped early.
    if view.succeeded == len(view.ranks) and not failed and all(exit.at <= first_order for exit in view.exits):
        return Verdict(Outcome.SUCCEEDED, 0, view.succeeded)
    gone = _lost_or_leaving_workers(view, failed, now, patience)
    if failed and not gone and not _are_exits_settled(view, failed, now, patience):
        return None
    failure = first_cause(view, failed, gone)
    if failure is None:
        if not all(state.phase in ENDED for state in view.ranks):
            return None
        failure = _gang_incomplete_failure(view)
    code = contract.EXIT_GANG_STOPPED if failure.exit_code is None else failure.exit_code
    if failure.reason is Reason.AGENT_LOST and failure.signal:
        if now - max(orders) < patience.settle_s / 2:
            return None
        if len(orders) == len(view.workers):
            return Verdict(Outcome.STOPPED, code, view.succeeded)
    return Verdict(Outcome.FAILED, code, view.succeeded, failure)


NO_CONTACT = (
    "connected to another one: each trained independently. To train together, call ringtrain.init() in the "
    "program, or join the world that its environment describes in another way"
)


def with_warning(view: GangView, verdict: Verdict | None, words: str = NO_CONTACT) -> Verdict | None:
    """Return `verdict`. If several ranks succeeded but none joined a world, add the warning "none of the N ranks
    `words`"."""
    size = len(view.ranks)
    if verdict is None or verdict.outcome is not Outcome.SUCCEEDED or size == 1:
        return verdict
    if any(state.joined for state in view.ranks):
        return verdict
    return replace(verdict, warning=f"none of the {size} ranks {words}")


def _exit_time(exit: RankExit) -> tuple[float, int]:
    # Rounded to 10 ms: below that, the order seen by the agent is more reliable than clocks and the network.
    return (round(exit.at, 2), exit.state.exit_order)


def _is_hard_failure(view: GangView, exit: RankExit) -> bool:
    # A rank that has reported a lost peer is a witness, even if it is killed before it exits.
    state = exit.state
    if not state.signal or state.signal in _SOFT_SIGNALS:
        return False
    return view.lost_by(state) is None


def _are_exits_settled(view: GangView, failed: Sequence[RankExit], now: float, patience: VerdictPatience) -> bool:
    if any(_is_hard_failure(view, exit) for exit in failed) or all(state.phase in ENDED for state in view.ranks):
        return True
    # An own failure can only be preceded by an earlier exit whose report is still under way. A rank that lost its peer
    # is not the cause, and the traceback of the causing rank may take longer to arrive.
    own_cause = any(view.lost_by(exit.state) is None for exit in failed)
    return now - failed[0].at >= (patience.settle_s / 2 if own_cause else patience.settle_s)


def _lost_or_leaving_workers(
    view: GangView, failed: Sequence[RankExit], now: float, patience: VerdictPatience
) -> list[WorkerView]:
    """Return the workers whose agents are lost or leaving. After a settled failure, a shorter silence counts as a
    loss."""
    settled = bool(failed) and now - failed[0].at >= patience.settle_s
    limit = min(patience.settle_s, patience.lost_after_s) if settled else patience.lost_after_s
    return [
        worker
        for worker in view.workers
        if worker.leaving or (worker.silent_since is not None and now - worker.silent_since >= limit)
    ]


def failures_by_time(exits: Iterable[RankExit]) -> list[RankExit]:
    """Return the exits of failed ranks in `exits`, earliest first."""
    return sorted((exit for exit in exits if exit.state.phase is RankPhase.FAILED), key=_exit_time)


def first_cause(view: GangView, failed: Sequence[RankExit], gone: Sequence[WorkerView]) -> Failure | None:
    """Return the first cause of a failure; None if none is known.

    `failed`: exits of failed ranks, earliest first. `gone`: workers whose agents are lost or leaving.
    """
    for exit in failed:
        if _is_hard_failure(view, exit):
            return _rank_failure(view, exit)
    if gone:
        return _agent_failure(view, min(gone, key=lambda worker: (_absent_since(worker), worker.index)))
    lost = {exit.state.rank: view.lost_by(exit.state) for exit in failed}
    own = [exit for exit in failed if lost[exit.state.rank] is None]
    if own:
        told = [exit for exit in own if exit.state.exit_code == view.command_code]
        return _rank_failure(view, (told or own)[0])
    if failed:
        return _blamed_rank_failure(view, failed, [rank for rank in lost.values() if rank is not None])
    return None


def _absent_since(worker: WorkerView) -> float:
    return worker.leaving_since if worker.silent_since is None else worker.silent_since


def _blamed_rank_failure(view: GangView, failed: Sequence[RankExit], accused: Sequence[int]) -> Failure:
    """Return the failure of the rank that most failed ranks name as lost. Ranks that failed themselves are not
    considered.

    If no other rank is named, return the failure of the first failed rank.
    """
    witnesses = {exit.state.rank for exit in failed}
    votes = Counter(rank for rank in accused if rank not in witnesses and rank < len(view.ranks))
    if not votes:
        return _rank_failure(view, failed[0])
    rank = min(votes, key=lambda candidate: (-votes[candidate], candidate))
    worker = view.worker_of(rank)
    said = next(line for line in reversed(failed[0].state.log_tail) if _PEER_LOST.search(line)).strip()
    if view.ranks[rank].phase is RankPhase.SUCCEEDED:
        message = (
            f"rank {rank} had finished while rank(s) {in_ranges(witnesses)} still needed it{_AS_MANY_STEPS}: {said}"
        )
        return replace(_rank_failure(view, failed[0]), message=message)
    return Failure(
        reason=Reason.RANK_FAILED,
        message=f"rank {rank} stopped answering and was lost by rank(s) {in_ranges(witnesses)}: {said}",
        rank=rank,
        pod=worker.pod,
        pod_uid=worker.pod_uid,
        node=worker.node,
        exit_code=failed[0].state.exit_code,
    )


def _rank_failure(view: GangView, exit: RankExit) -> Failure:
    state, worker = exit.state, view.worker_of(exit.state.rank)
    how = f"was killed by {state.signal}" if state.signal else f"exited with {state.exit_code}"
    said = f": {state.log_tail[-1]}" if state.exit_code in _NOT_EXECUTED and state.log_tail else ""
    return Failure(
        reason=state.reason or Reason.RANK_FAILED,
        message=state.message or f"rank {state.rank} {how}{said}",
        rank=state.rank,
        pod=worker.pod,
        pod_uid=worker.pod_uid,
        node=worker.node,
        exit_code=state.exit_code,
        signal=state.signal,
        log_tail=state.log_tail,
    )


def _agent_failure(view: GangView, worker: WorkerView) -> Failure:
    where = f" on node {worker.node}" if worker.node else ""
    if worker.leaving:
        message = f"worker {worker.index} (pod {worker.pod}{where}) was stopped by {worker.leaving}"
        exit_code = 128 + signal.Signals[worker.leaving]
    else:
        message = f"worker {worker.index} (pod {worker.pod}{where}) no longer answers"
        exit_code = None
    return Failure(
        reason=Reason.AGENT_LOST,
        message=f"{message}; its rank(s) {in_ranges(view.ranks_of(worker))} are lost",
        rank=next(iter(view.ranks_of(worker)), None),
        pod=worker.pod,
        pod_uid=worker.pod_uid,
        node=worker.node,
        exit_code=exit_code,
        signal=worker.leaving,
    )


def _gang_incomplete_failure(view: GangView) -> Failure:
    missing = [state.rank for state in view.ranks if state.phase is not RankPhase.SUCCEEDED]
    return Failure(
        reason=Reason.WORLD_INCOMPLETE,
        message=(
            f"only {view.succeeded} of {counted(len(view.ranks), 'rank')} finished; rank(s) "
            f"{in_ranges(missing)} did not"
        ),
        rank=missing[0],
        pod=view.worker_of(missing[0]).pod,
        pod_uid=view.worker_of(missing[0]).pod_uid,
        node=view.worker_of(missing[0]).node,
    )
