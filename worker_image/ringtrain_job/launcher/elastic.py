"""Backend of an elastic job: executes the decisions of the state machine in `launcher/generation.py`."""

import logging
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ringtrain.errors import ConfigurationError, counted, in_ranges, some_of
from ringtrain.shared import contract
from ringtrain_job.control.model import Failure, Form, Outcome, Prepare, RankPhase, Reason, Stop, Verdict
from ringtrain_job.control.termination import failure_json
from ringtrain_job.launcher.backend import HandOver
from ringtrain_job.launcher.config import LauncherConfig
from ringtrain_job.launcher.elastic_end import FRUITLESS_GENERATIONS, RUIN_REASON, AttemptEnd, Ruin
from ringtrain_job.launcher.generation import Formed, advance_generation, all_members_joined, member_standings
from ringtrain_job.launcher.generation_state import (
    GenerationJournal,
    GenerationOrders,
    GenerationPhase,
    GenerationState,
)
from ringtrain_job.launcher.losses import GenerationLosses
from ringtrain_job.launcher.members import SlotView, Standing, WorldView
from ringtrain_job.launcher.registry import BackendContext
from ringtrain_job.launcher.verdict import GangView, lost_peer

log = logging.getLogger(__name__)

# With a thousand workers, one evaluation takes a tenth of a second or more. It runs after each change, and at this
# interval for conditions that depend on time alone.
_LOOK_S = 0.5


class ElasticBackend:
    """Backend of an elastic job: evaluates the state machine, sends its orders to agents, logs changes of the world."""

    def __init__(self, context: BackendContext, clock: Callable[[], float] = time.monotonic) -> None:
        config, snapshot = context.config, context.status
        assert config.elastic is not None
        rules = replace(config.elastic.rules, sets_aside=context.hosts is not None and context.hosts.sets_aside)
        self._settings = settings = replace(config.elastic, rules=rules)
        self._config, self._sites, self._hosts = config, context.sites, context.hosts
        self._gang, self._snapshot, self._clock = snapshot.gang, snapshot, clock
        self._gang.vacancy_s = config.vacancy_s
        self._requested_at: float | None = None
        self._journal = GenerationJournal(snapshot.store.files)
        self._lock = threading.Lock()
        self._losses = GenerationLosses()
        self._joined = 0
        self._state_lost: dict[str, Any] | None = None
        self._seen, self._looked = -1, 0.0
        kept = self._journal.read() if snapshot.store.resumed else None
        if kept is None:
            # The start number is higher than any order of an earlier launcher.
            known = settings.known_generation
            orders = GenerationOrders(number=time.time_ns() // 1_000_000, urgent=known > 0)
            self._state = GenerationState(number=known + 1, orders=orders)
            self._asked = frozenset(range(0 if settings.discovery_script else settings.start_ranks))
        else:
            self._state, self._asked = kept
            if self._state.phase is GenerationPhase.RUNNING:
                self._joined = self._state.number
        self._recoveries = self._state.losses.recoveries  # recoveries that were logged
        self._note_members()

    @property
    def ranks(self) -> int:
        return len(self._state.members)

    def begin(self) -> None:
        """Start the host discovery script if the run has one."""
        if self._hosts is None or not self._settings.discovery_script:
            return
        if self._hosts.has_sites:
            self._sites.of_host = self._hosts.site_of
        workers, slots = self._config.workers, self._config.slots
        self._hosts.follow(self._settings.discovery_script, workers, slots, self._settings.rules, self)

    def handle_stop_request(self, *, by_person: bool) -> Verdict | HandOver | None:
        """Return a verdict if the job must stop: a person or all agents request it, or no rank has started.

        Otherwise only this pod is deleted. Return None at first, and HandOver some seconds later.
        """
        self._requested_at = self._clock() if self._requested_at is None else self._requested_at
        if by_person or self._gang.all_leaving() or not self._gang.any_rank_started():
            view = WorldView(self._gang.slots(), self._asked)
            return Verdict(Outcome.STOPPED, 128 + signal.SIGTERM, self._finished(view))
        return HandOver() if self._clock() - self._requested_at >= self._config.hand_over_s else None

    def stop(self, verdict: Verdict) -> None:
        self._leave_hosts()  # agents that end from now on were ordered to
        self._gang.give(Stop(verdict))

    def is_quiet(self) -> bool:
        return self._gang.all_drained()

    def close(self) -> None:
        self._leave_hosts()

    def may_end(self) -> bool:
        """Return whether the attempt may end as soon as all ranks have succeeded."""
        return True

    def before_preparing(self) -> None:
        """Hook for subclasses: called before the next generation is prepared."""

    def after_forming(self, order: Formed) -> None:
        """Hook for subclasses: called after agents have received the order to begin a new generation."""

    def failure_of_starter(self, view: WorldView, gang: GangView, now: float) -> Verdict | None:
        """Hook for subclasses: return a verdict if the process that starts the ranks has failed; None otherwise."""
        return None

    def _leave_hosts(self) -> None:
        """Stop requesting slots of hosts that may change."""
        if self._hosts is not None:
            self._hosts.close()

    def request_workers(self, workers: int, gone: Mapping[int, int] | None = None) -> None:
        """Request ranks on the first `workers` workers. Raises ConfigurationError if that is outside the job's limits.

        `gone`: for each worker, the incarnation of the newest pod that is known to have ended.
        """
        self._gang.mark_workers_lost(gone or {})
        rules, slots = self._settings.rules, self._config.slots
        if not rules.min_ranks <= workers * slots <= rules.max_ranks:
            raise ConfigurationError(
                f"workers is {workers}, which is {counted(workers * slots, 'rank')}; expected {rules.min_ranks} to "
                f"{counted(rules.max_ranks, 'rank')}"
            )
        self.request_slots(frozenset(range(workers * slots)))

    def request_slots(self, slots: frozenset[int]) -> None:
        """Request a rank in each of `slots`."""
        with self._lock:
            if slots != self._asked:
                log.info("number of requested ranks is now %d, was %d", len(slots), len(self._asked))
                self._asked = slots
        self._gang.notice()

    def workers_in_use(self) -> frozenset[int]:
        """Return the worker indexes with a rank in the running generation; all worker indexes while a generation is
        being formed."""
        with self._lock:
            state = self._state
        if state.phase is not GenerationPhase.RUNNING:
            return frozenset(range(self._config.workers))
        return frozenset(process.slot // self._config.slots for process in state.members)

    def attached_workers(self) -> frozenset[int]:
        """Return the worker indexes whose agents are connected."""
        return self._gang.attached_workers()

    def failed_processes(self) -> dict[tuple[int, int], str]:
        """Return a message for each failed rank process that did not only lose a peer, by slot and process number."""
        found = {}
        for exit in self._gang.view().exits:
            state = exit.state
            if state.phase is RankPhase.FAILED and lost_peer(state.log_tail, -1) is None:
                how = state.message or state.signal or f"exit code {state.exit_code}"
                found[state.rank, state.life] = f"the rank in slot {state.rank} has failed ({how})"
        return found

    def tick(self) -> Verdict | None:
        """Evaluate the state machine and execute its decision; return the verdict once the attempt has ended."""
        now, changes = self._clock(), self._gang.changes
        if changes == self._seen and now - self._looked < _LOOK_S:
            return None
        self._seen, self._looked = changes, now
        return self._look(now)

    def _look(self, now: float) -> Verdict | None:
        view = WorldView(self._slots(), self._asked, self._snapshot.reported_step())
        gang = self._gang.view()
        self._losses.note(self._state, view, gang, now)
        before = self._state
        decided = advance_generation(before, self._settings.rules, view, now)
        if decided.end is not None and decided.end.ruin is not None:
            return self._verdict(decided.end, view, gang)
        if decided.order is None and (failed := self.failure_of_starter(view, gang, now)):
            return failed
        if decided.end is not None:
            return self._verdict(decided.end, view, gang) if self.may_end() else None
        if decided.order is not None:
            self._seen = -1  # a follow-up decision may be due at once
            self._log_decision(before, decided.state, view, gang)
        if decided.order is not None or decided.state.steps.held != before.steps.held:
            self._journal.write(decided.state, self._asked)
        if decided.state.times.stateless_at is not None and before.times.stateless_at is None:
            limit = self._settings.rules.replace_timeout_s
            lacking = "no connected rank has the training state of generation %d; waiting at most %g s for one"
            log.warning(lacking, before.formed, limit)
        with self._lock:
            self._state = decided.state
        if isinstance(decided.order, Prepare):
            self.before_preparing()
            self._gang.give(decided.order)
        elif isinstance(decided.order, Formed):
            self._form(decided.order, new=before.formed != decided.order.generation)
        self._log_joined_world(view)
        return None

    def status(self) -> dict[str, Any]:
        with self._lock:
            state, asked, state_lost = self._state, len(self._asked), self._state_lost
        rules = self._settings.rules
        lost = state.phase is GenerationPhase.PREPARING and state.orders.urgent
        shown = {
            "formation": state.number if state.phase is GenerationPhase.RUNNING else state.formed,
            "phase": state.phase.value,
            "ranks": len(state.members),
            "minRanks": rules.min_ranks,
            "maxRanks": rules.max_ranks,
            "lostSteps": state.losses.steps,
            "recoveries": state.losses.recoveries,
            "lastRecoverySeconds": state.losses.last_recovery_s,
            "degraded": bool(state.formed) and (lost or len(state.members) < asked),
            "stateLost": state_lost,
        }
        return {"elastic": shown}

    def _form(self, order: Formed, *, new: bool) -> None:
        self._note_members()
        if self._snapshot.running_since is None:
            self._snapshot.running_since = time.time()
        world = self._gang.world_of(order.generation, order.members, self._sites_of_workers())
        world = replace(world, committed=order.committed)
        self._gang.give(Form(world, tuple(sorted(order.slots)), order.number))
        if new:
            self.after_forming(order)

    def _sites_of_workers(self) -> dict[int, str]:
        """Return the site name of each worker whose agent has registered; empty for a job without sites."""
        came = self._gang.registrations() if self._sites.are_named else {}
        return {worker: self._sites.of(worker, one.node) for worker, one in came.items()}

    def _slots(self) -> dict[int, SlotView]:
        """Return the state of all slots. Workers whose site is still unknown appear as not registered."""
        slots = dict(self._gang.slots())
        members = {process.slot for process in self._state.members}
        named = self._sites_of_workers()
        for slot, view in slots.items() if self._sites.are_named else ():
            if view.instance and slot not in members and not named.get(view.worker):
                slots[slot] = SlotView(slot, view.worker)
        return slots

    def _note_members(self) -> None:
        if self._state.members:
            members = frozenset(process.slot for process in self._state.members)
            self._snapshot.keep_ranks(members)

    def _log_decision(self, before: GenerationState, after: GenerationState, view: WorldView, gang: GangView) -> None:
        """Log each change of the world in one line."""
        if after.phase is GenerationPhase.RUNNING:
            if before.phase is not GenerationPhase.RUNNING:
                names = in_ranges(process.slot for process in after.members)
                log.info("generation %d consists of slots %s", after.number, names)
                self._log_state_lost(before, after, gang)
            return
        if after.number == before.number:
            return
        if after.orders.urgent:
            cause = self._losses.cause(before, gang)
            why = cause.message if cause else "a rank has left its world"
            log.warning("generation %d has lost a rank: %s; preparing generation %d", before.formed, why, after.number)
            return
        log.info(
            "preparing generation %d: %s; ranks leave generation %d at their next commit",
            after.number,
            _change_reason(before, view),
            before.formed,
        )

    def _log_state_lost(self, before: GenerationState, after: GenerationState, gang: GangView) -> None:
        """Log and record a loss of the training state, after which training restarts from an older step."""
        survivors = {process.member for process in before.members} & {process.member for process in after.members}
        now, then = after.steps, before.steps
        lost_now = now.training < now.committed and then.training == then.committed
        if not before.formed or (survivors and not lost_now) or self._settings.rules.restarts:
            return
        anew = "restarts from its last checkpoint, or from the beginning without one"
        message = (
            f"no remaining rank has the training state of generation {before.formed}: training "
            f"{f'continues from commit {now.training}' if now.training else anew}; "
            f"later steps, up to step {then.highest}, are lost"
        )
        log.warning("%s", message)
        cause = self._losses.cause(before, gang) or Failure(Reason.RANK_FAILED, "")
        because = f" (first: {cause.message})" if cause.message else ""
        lost = {**failure_json(replace(cause, message=message + because)), "reason": "StateLost"}
        with self._lock:
            self._state_lost = lost

    def _log_joined_world(self, view: WorldView) -> None:
        state = self._state
        if state.number <= self._joined or not all_members_joined(state, self._settings.rules, view):
            return
        self._joined = state.number
        losses = state.losses
        more = f", {losses.last_recovery_s:.1f} s after the loss" if losses.recoveries > self._recoveries else ""
        self._recoveries = losses.recoveries
        log.info("generation %d is running, ranks: %d%s", state.number, len(state.members), more)

    def _finished(self, view: WorldView) -> int:
        return sum(at is Standing.FINISHED for at in member_standings(self._state, view).values())

    def _verdict(self, end: AttemptEnd, view: WorldView, gang: GangView) -> Verdict:
        if end.ruin is None:
            return Verdict(Outcome.SUCCEEDED, 0, self._finished(view) or len(self._asked))
        cause = self._losses.cause(self._state, gang)
        if end.ruin is Ruin.OWN_ERROR and end.slot is not None:
            cause = self._losses.of_slot(end.slot, gang) or cause
        failure = self._failure(end, cause, gang, view)
        code = contract.EXIT_NOT_ASSEMBLED if end.ruin is Ruin.NOT_ASSEMBLED else contract.EXIT_GANG_STOPPED
        return Verdict(Outcome.FAILED, failure.exit_code or code, self._finished(view), failure)

    def _failure(self, end: AttemptEnd, cause: Failure | None, gang: GangView, view: WorldView) -> Failure:
        rules = self._settings.rules
        known = cause or Failure(Reason.RANK_FAILED, "a rank has ended with an unknown exit code", end.slot)
        because = f": {cause.message}" if cause else ""
        match end.ruin:
            case Ruin.NOT_ASSEMBLED:
                return Failure(
                    Reason.NOT_ASSEMBLED, _not_assembled_message(self._config, rules.min_ranks, view) + because
                )
            case Ruin.TOO_FEW:
                waited = rules.replace_timeout_s + rules.start_timeout_s
                message = f"fewer than {counted(rules.min_ranks, 'rank')} for {waited:g} s{because}"
                return replace(known, reason=RUIN_REASON[end.ruin], message=message)
            case Ruin.GENERATION_LIMIT:
                message = (
                    f"the job has had {counted(rules.generation_limit, 'generation')}, the limit "
                    f"(formationLimit){because}"
                )
                return replace(known, reason=Reason.RANK_FAILED, message=message)
            case Ruin.NOT_FENCED:
                worker = gang.worker_of(end.slot or 0)
                message = (
                    f"rank {end.slot} has not left generation {self._state.formed} within {3 * rules.timeout_s:g} s, "
                    "and its agent could not kill it"
                )
                return Failure(Reason.RANK_FAILED, message, end.slot, worker.pod, worker.node)
            case Ruin.ALL_FAILED:
                return replace(known, message=f"{known.message}; all ranks failed by themselves")
            case Ruin.FRUITLESS:
                message = (
                    f"{FRUITLESS_GENERATIONS} generations ended by an error of a rank before any step was completed"
                )
                return replace(known, message=f"{message}{because}")
            case Ruin.NO_SURVIVOR:
                return replace(known, message=f"{known.message}; all other ranks had already finished")
            case _ if known.reason is Reason.CANNOT_START:
                return known
            case _:
                return replace(known, message=f"{known.message}, three times without a completed step in between")


def open_elastic(context: BackendContext) -> ElasticBackend | None:
    """Return the backend of an elastic job whose agents start the ranks; None for any other job."""
    config = context.config
    return ElasticBackend(context) if config.elastic is not None and config.agents_start_ranks else None


def _change_reason(before: GenerationState, view: WorldView) -> str:
    """Return why a new generation is prepared although no rank was lost."""
    leaving = sorted({slot.worker for slot in view.slots.values() if slot.leaving and not slot.lost})
    inside = {process.slot for process in before.members}
    if leaving:
        return f"worker(s) {in_ranges(leaving)} must stop"
    if inside - view.asked:
        return f"the requested number of ranks is {len(inside - view.asked)} lower"
    return "more ranks are ready to join"


def _not_assembled_message(config: LauncherConfig, least: int, view: WorldView) -> str:
    absent = sorted({slot.worker for slot in view.slots.values() if slot.slot in view.asked and not slot.instance})
    names = some_of([f"{config.job.name}-worker-{index}" for index in absent])
    missing = f"; not registered: {names}" if names else ""
    return f"fewer than {counted(least, 'rank')} became ready within {config.start_timeout_s:g} s{missing}"
