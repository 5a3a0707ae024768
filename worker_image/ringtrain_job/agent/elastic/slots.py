"""Slots of an elastic job's worker, each of which has one rank process at a time."""

import logging
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ringtrain.shared import contract
from ringtrain.shared.processes import RankProcess, signal_marked
from ringtrain_job.agent.config import AgentConfig
from ringtrain_job.agent.elastic.messages import (
    Committed,
    FromRank,
    Joined,
    Ready,
    slot_change_message,
    slot_error_message,
    slot_leave_message,
    slot_world_message,
)
from ringtrain_job.agent.elastic.orders import (
    ElasticSlotAction,
    ElasticSlotOrder,
    OwnSlot,
    SlotDeadlines,
    current_slot_order,
    next_slot_action,
)
from ringtrain_job.agent.elastic.sockets import ElasticRankSockets
from ringtrain_job.agent.rank_env import (
    generation_variables,
    pod_defaults,
    slot_environment,
    usable_cores,
)
from ringtrain_job.agent.ranks import AgentRanks
from ringtrain_job.control.model import Form, Member, Prepare, RankPhase, RankState, World

log = logging.getLogger(__name__)

# Longest backoff before the next start in a slot whose process ended without a world: 0 at first, then doubling.
_LONGEST_PAUSE_S = 30.0
_UNWANTED = "the next generation does not use this slot"


@dataclass(frozen=True)
class RankProgram:
    """Command of the ranks, and the environment that they inherit."""

    command: Sequence[str]
    inherited: Mapping[str, str]


class ElasticSlotHost(Protocol):
    """Callbacks of the slots into the agent. All methods run on the main thread, except `changed`."""

    def prepare_start(self, slot: int) -> None:
        """Release the ports that were reserved for `slot`, because its process is about to start."""

    def fitted(self, variables: Mapping[str, str], world: World) -> dict[str, str]:
        """Return `variables`, with values that are too long for the environment moved to a file."""

    def collect(self, process: RankProcess) -> None:
        """Begin to collect the output of a process that was started."""

    def write_line(self, slot: int, line: str) -> None:
        """Add `line` to the slot's log."""

    def changed(self) -> None:
        """Send the states of ranks to the launcher now."""

    def post(self, work: Callable[[], None]) -> None:
        """Schedule `work` on the main thread."""


@dataclass(frozen=True)
class _SlotRecord:
    """The agent's record of a slot: messages sent to its process, and times from which deadlines count.

    `last_change`, `left_since`, `stopped_since`: see `OwnSlot`. `killed`: whether the process was killed.
    `without_world`: number of consecutive processes that ended without a world. `start_at`: earliest time of the next
    start.
    """

    last_change: tuple[int, bool] | None = None
    left_since: float | None = None
    stopped_since: float | None = None
    killed: bool = False
    without_world: int = 0
    start_at: float = float("-inf")


class ElasticSlots:
    """Executor of the launcher's orders Prepare and Form for a worker's slots. Runs on the main thread, except for
    callbacks of sockets."""

    def __init__(
        self,
        config: AgentConfig,
        program: RankProgram,
        ranks: AgentRanks,
        host: ElasticSlotHost,
    ) -> None:
        self._config = config
        self._program = program
        self._ranks = ranks
        self._host = host
        self._cores = usable_cores()
        self._own = range(config.first_rank, config.first_rank + config.slots)
        self._records = dict.fromkeys(self._own, _SlotRecord())
        self._current: ElasticSlotOrder | None = None
        self._number = 0
        self.order = 0
        self._deadlines = SlotDeadlines(config.fence_s, config.stopped_fence_s)
        self._sockets = ElasticRankSockets(self._on_connection, self._on_message) if config.living else None

    def close(self) -> None:
        """Close the sockets and remove their files."""
        if self._sockets is not None:
            self._sockets.close()

    def follow(self, order: Prepare | Form) -> None:
        """Store `order`, the launcher's newest order. `act` executes it."""
        self._current = current = current_slot_order(order, self._current, not self._config.living, time.monotonic())
        self._number = order.number
        if current.world is not None:
            for slot in self._own:
                self._forget_leaver(slot)
        log.info("generation %d %s", current.generation, "begins" if current.world else "is being prepared")

    def act(self, starting: bool) -> None:
        """Execute all actions that are due. `starting`: whether processes may be started, because the pod is not about
        to end."""
        if self._current is None:
            return
        for slot in self._own:
            now = time.monotonic()
            self._note_stopped(slot, now)
            while (action := self._next_action(self._current, slot, starting, now)) is not None:
                if not self._do(self._current, slot, action, now):
                    break
        # Set last: the state of ranks that is sent with this number must be newer than the order.
        if self.order != self._number:
            self.order = self._number
            self._host.changed()

    def ended(self, slot: int) -> None:
        """Kill the processes that the ended process in `slot` has left, and compute when the next one may start."""
        state = self._ranks.state(slot)
        self._ranks.clear(slot)
        if self._sockets is not None:
            caller = Member(slot, state.life)
            self._sockets.forget(caller)
            signal_marked(str(self._sockets.path(caller)), signal.SIGKILL, contract.ENV_AGENT_SOCKET)
        record = self._records[slot]
        barren = 0 if state.formation else record.without_world + 1
        pause_s = min(_LONGEST_PAUSE_S, 2.0 ** (barren - 2)) if barren > 1 else 0.0
        self._records[slot] = _SlotRecord(without_world=barren, start_at=time.monotonic() + pause_s)

    def _next_action(self, order: ElasticSlotOrder, slot: int, starting: bool, now: float) -> ElasticSlotAction | None:
        return next_slot_action(order, self._view(slot, starting, now), self._deadlines, now)

    def _note_stopped(self, slot: int, now: float) -> None:
        """Record since when SIGSTOP has stopped the process in `slot`. Such a process cannot handle messages."""
        record = self._records[slot]
        since = (now if record.stopped_since is None else record.stopped_since) if self._ranks.stopped(slot) else None
        if since != record.stopped_since:
            self._records[slot] = replace(record, stopped_since=since)

    def _view(self, slot: int, starting: bool, now: float) -> OwnSlot:
        state, record = self._ranks.state(slot), self._records[slot]
        running = state.phase is RankPhase.RUNNING
        fresh = state.phase is RankPhase.WAITING
        # An order with this slot may be older than the end of its program.
        finished = state.phase is RankPhase.SUCCEEDED and self._config.living
        return OwnSlot(
            slot=slot,
            life=state.life,
            running=running,
            startable=starting
            and not (running or finished)
            and now >= record.start_at
            and (fresh or self._ranks.reported(slot)),
            generation=state.formation,
            parked=state.parked,
            last_change=record.last_change,
            left_since=record.left_since,
            stopped_since=record.stopped_since,
        )

    def _do(self, order: ElasticSlotOrder, slot: int, action: ElasticSlotAction, now: float) -> bool:
        """Execute `action`; return whether the slot's next action may be due at once."""
        match action:
            case ElasticSlotAction.START:
                self._start(order, slot)
            case ElasticSlotAction.WORLD:
                self._give_world(order, slot)
            case ElasticSlotAction.CHANGE:
                urgent = order.urgent_since is not None
                self._send_to_slot(slot, slot_change_message(order.generation, urgent, order.leaving))
                self._records[slot] = replace(self._records[slot], last_change=(order.generation, urgent))
            case ElasticSlotAction.LEAVE:
                self._send_to_slot(slot, slot_leave_message(_UNWANTED))
                self._ranks.dismiss(slot, f"left: {_UNWANTED}")
                self._records[slot] = replace(self._records[slot], left_since=now)
                if order.world is not None:
                    self._forget_leaver(slot)
            case ElasticSlotAction.TERMINATE:
                self._ranks.stop(self._config.grace_s, f"stopped for generation {order.generation}", [slot])
                return False
            case ElasticSlotAction.KILL:
                self._kill(order, slot)
                return False
        return True

    def _forget_leaver(self, slot: int) -> None:
        """Mark a process that was ordered to leave as outside any world.

        Otherwise, if the slot is requested again before the process ends, the launcher would take it for a process that
        wants to join.
        """
        if self._records[slot].left_since is not None:
            life = self._ranks.state(slot).life
            self._ranks.update(slot, life, parked=False, formation=0, joined=False)

    def _start(self, order: ElasticSlotOrder, slot: int) -> None:
        life = self._ranks.state(slot).life + 1
        state = RankState(slot, RankPhase.RUNNING, life=life)
        config, inherited = self._config, self._program.inherited
        if self._sockets is not None:
            path = self._sockets.open(Member(slot, life))
            environment = slot_environment(config, slot, str(path), inherited, self._cores)
        else:
            assert order.world is not None, "in this job processes start with their world"
            state = replace(state, formation=order.generation)
            own = self._host.fitted(generation_variables(config, order.world, slot), order.world)
            environment = {**pod_defaults(config.slots, self._cores), **inherited, **own}
        self._records[slot] = _SlotRecord(without_world=self._records[slot].without_world)
        self._host.prepare_start(slot)
        process = self._ranks.start_life(state, self._program.command, environment)
        if process is None:
            self._host.write_line(slot, self._ranks.state(slot).log_tail[-1])
            self.ended(slot)
        else:
            if life > 1:
                self._host.write_line(slot, f"[ringtrain] process {life} of slot {slot} begins")
            self._host.collect(process)
        self._host.changed()

    def _give_world(self, order: ElasticSlotOrder, slot: int) -> None:
        assert order.world is not None, "a step of orders that have one"
        variables = self._host.fitted(generation_variables(self._config, order.world, slot), order.world)
        self._send_to_slot(slot, slot_world_message(order.generation, variables))
        self._ranks.update(
            slot,
            self._ranks.state(slot).life,
            formation=order.generation,
            parked=False,
            joined=False,
            unshared=False,
        )
        self._host.changed()

    def _kill(self, order: ElasticSlotOrder, slot: int) -> None:
        record = self._records[slot]
        if not record.killed:
            reason = self._kill_reason(order, slot)
            log.warning("slot %d: %s", slot, reason)
            self._host.write_line(slot, f"[ringtrain] {reason}")
            self._records[slot] = replace(record, killed=True)
            self._ranks.kill(reason, [slot])

    def _kill_reason(self, order: ElasticSlotOrder, slot: int) -> str:
        state, record = self._ranks.state(slot), self._records[slot]
        if record.stopped_since is not None and record.left_since is None and not state.formation:
            return "killed: a signal stopped it before it was in any generation"
        seconds = f"within {self._deadlines.fence_s:g} s"
        if record.left_since is not None or not state.formation:
            return f"killed: it did not end {seconds}, and generation {order.generation} does not use its slot"
        if record.stopped_since is not None and state.formation >= order.generation:
            return f"killed: a signal stopped it in generation {state.formation}, {self._deadlines.fence_s:g} s ago"
        if record.stopped_since is not None:
            was, follows = state.formation, order.generation
            return f"killed: a signal stopped it in generation {was}, which generation {follows} replaces"
        return f"killed: it did not leave generation {state.formation} {seconds} for generation {order.generation}"

    def _send_to_slot(self, slot: int, message: dict[str, Any]) -> None:
        if self._sockets is not None:
            self._sockets.send(Member(slot, self._ranks.state(slot).life), message)

    def _on_connection(self, caller: Member, opened: bool) -> None:
        self._host.post(lambda: self._connection(caller, opened))

    def _on_message(self, caller: Member, message: FromRank) -> None:
        match message:
            case Committed(step):
                self._ranks.update(caller.slot, caller.life, committed=step)
            case Joined():
                self._host.post(lambda: self._joined(caller, message))
            case Ready():
                self._host.post(lambda: self._ready(caller, message))

    def _connection(self, caller: Member, opened: bool) -> None:
        if self._ranks.state(caller.slot).life != caller.life:
            return
        if opened:
            self._records[caller.slot] = replace(self._records[caller.slot], last_change=None)
        else:
            self._ranks.update(caller.slot, caller.life, parked=False)
            self._host.changed()

    def _joined(self, caller: Member, message: Joined) -> None:
        state = self._ranks.state(caller.slot)
        if message.formation == state.formation and not state.parked:  # otherwise it has received a newer order
            self._ranks.update(caller.slot, caller.life, joined=True)
            self._host.changed()

    def _ready(self, caller: Member, message: Ready) -> None:
        state = self._ranks.state(caller.slot)
        if state.life != caller.life or state.phase is not RankPhase.RUNNING:
            return
        if message.formation > state.formation:
            text = f"ready for generation {message.formation}: this process has had no world after {state.formation}"
            log.warning("slot %d: %s", caller.slot, text)
            self._send_to_slot(caller.slot, slot_error_message(text))
            return
        self._ranks.update(
            caller.slot,
            caller.life,
            parked=True,
            formation=message.formation,
            committed=message.committed,
            lost_steps=message.lost_steps,
            unshared=message.unshared,
            adopted=message.adopted,
            joined=False,
        )
        if self._records[caller.slot].left_since is not None:
            # The process received the message on a connection that it has closed since.
            self._send_to_slot(caller.slot, slot_leave_message(_UNWANTED))
        self._host.changed()
