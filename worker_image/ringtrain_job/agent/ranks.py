"""The ranks of this worker: start, watch and stop their process groups.

In an elastic job a rank's number is its slot, in which one process runs after the other: its lives.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from signal import SIGTERM
from typing import Any

from ringtrain.shared.processes import (
    NO_PROGRAM,
    RankProcess,
    is_stopped,
    kill_descendants,
    living_processes,
    reap,
    signal_group,
    signal_name,
    start_rank,
)
from ringtrain_job.agent.stopping import RankStop
from ringtrain_job.control.model import ENDED, RankPhase, RankState, Reason

_SWEEP_S = 5.0


class AgentRanks:
    """Ranks of this worker, `first` … `first + count - 1`. The main thread changes them; other threads may call
    `states`."""

    def __init__(self, first: int, count: int) -> None:
        self._lock = threading.Lock()
        self._lives = {rank: RankLife(RankState(rank, RankPhase.WAITING)) for rank in range(first, first + count)}
        # Returns the cause of an exit if it is known and the exit code does not show it.
        self.end_cause: Callable[[int, int], str] = lambda *_: ""
        self._exits = 0

    def start(self, command: Sequence[str], environment: Callable[[int], Mapping[str, str]]) -> list[RankProcess]:
        """Start the process of every rank. `environment(local_rank)` returns its environment.

        A rank that cannot be executed fails with a shell's exit code: 127 not found, 126 not executable.
        """
        started = [
            self._start(RankState(rank, RankPhase.RUNNING), command, environment(local_rank))
            for local_rank, rank in enumerate(self._lives)
        ]
        return [process for process in started if process is not None]

    def start_life(
        self, state: RankState, command: Sequence[str], environment: Mapping[str, str]
    ) -> RankProcess | None:
        """Start the next process in the slot `state.rank`. Return None if the command cannot be executed.

        `state` contains the process's number in the slot (`life`) and, if its world is already known, the world's
        generation.
        """
        return self._start(replace(state, phase=RankPhase.RUNNING), command, environment)

    def _start(self, state: RankState, command: Sequence[str], environment: Mapping[str, str]) -> RankProcess | None:
        try:
            process = start_rank(state.rank, command, environment)
        except OSError as exc:
            self._fail_to_start(state, command[0], exc)
            return None
        with self._lock:
            self._lives[state.rank] = RankLife(state, process, RankStop(process.pid))
        return process

    def adopt(self, process: RankProcess, life: int = 0, generation: int = 0) -> None:
        """Record a running rank that a plugin's program, not the agent, has started. `note_exit` will report its end.

        `life`, `generation`: in an elastic job, the number of the process in its slot, and the generation that it
        joins. If the program that started the rank dies, the rank's process becomes a child of the agent; `reap`
        ignores its exit.
        """
        with self._lock:
            state = RankState(process.rank, RankPhase.RUNNING, life=life, formation=generation)
            self._lives[process.rank] = RankLife(state, process, RankStop(process.pid), adopted=True)

    def reap(self, other: Callable[[int, int], None] = lambda *_: None) -> list[int]:
        """Reap ended processes, and take the next step (such as SIGKILL) for each rank that is being stopped. Return
        the ranks that have ended.

        `other` is called with pid and wait status of processes that are not ranks.
        """
        own = [(rank, life.process) for rank, life in self._lives.items() if not life.adopted]
        by_pid = {process.pid: rank for rank, process in own if process}
        ended = []
        for pid, status in reap():
            rank = by_pid.get(pid)
            if rank is None:
                other(pid, status)
                continue
            if self.note_exit(rank, os.waitstatus_to_exitcode(status)):
                ended.append(rank)
        return ended + self._go_on_stopping()

    def stop(self, grace_s: float, reason: str = "", ranks: Collection[int] | None = None) -> None:
        """Stop `ranks` (None: all): SIGTERM, then SIGKILL after `grace_s`. `reason`: text for the states of these
        ranks."""
        for stop in self._stops(ranks, reason):
            stop.request(grace_s)

    def kill(self, reason: str = "", ranks: Collection[int] | None = None) -> None:
        """Kill `ranks` (None: all running ones) now. `reason`: text for the states of these ranks."""
        for stop in self._stops(ranks, reason):
            stop.kill()

    def _stops(self, ranks: Collection[int] | None, reason: str) -> list[RankStop]:
        with self._lock:
            found = {rank: life for rank, life in self._lives.items() if life.runs and (ranks is None or rank in ranks)}
            self._lives.update((rank, replace(life, reason=reason or life.reason)) for rank, life in found.items())
        return [life.stop for life in found.values() if life.stop is not None]

    @property
    def stopping(self) -> bool:
        """Whether any running rank was ordered to stop."""
        with self._lock:
            return any(life.is_stopping for life in self._lives.values())

    def _go_on_stopping(self) -> list[int]:
        """Take the next step for each rank that is being stopped; return the ranks that have ended."""
        with self._lock:
            lives = [(rank, life) for rank, life in self._lives.items() if life.is_stopping]
        table = living_processes() if lives else {}
        over = [(rank, life.last) for rank, life in lives if life.stop and life.stop.advance(table) and life.last]
        for rank, last in over:
            self._conclude(rank, last)
        return [rank for rank, _ in over]

    def dismiss(self, rank: int, reason: str) -> None:
        """Record that a rank was ordered to leave for `reason`, so that no exit code counts as a failure."""
        with self._lock:
            self._lives[rank] = replace(self._lives[rank], dismissed=True, reason=reason)

    def update(self, rank: int, life: int, **changes: Any) -> None:
        """Change fields of the state of slot `rank`, if process number `life` is still the slot's newest."""
        with self._lock:
            found = self._lives[rank]
            if found.state.life == life:
                self._lives[rank] = replace(found, state=replace(found.state, **changes))

    def note_joined(self) -> None:
        """Record that all ranks of this pod have joined the world."""
        with self._lock:
            for rank, life in self._lives.items():
                self._lives[rank] = replace(life, state=replace(life.state, joined=True))

    def pids(self) -> dict[int, int]:
        """Return the PID of each running rank; in an elastic job, of each slot."""
        return {process.rank: process.pid for process in self._running()}

    def running(self) -> list[int]:
        """Return the ranks with a running process; in an elastic job, the slots with one."""
        with self._lock:
            return [rank for rank, life in self._lives.items() if life.state.phase is RankPhase.RUNNING]

    def state(self, rank: int) -> RankState:
        """Return the state of one rank, without waiting until its output is complete."""
        with self._lock:
            return self._lives[rank].state

    def number_from(self, rank: int, life: int) -> None:
        """Set the process number of slot `rank` to at least `life`, the number of the slot's last process in an earlier
        pod.

        Does nothing if this agent has already started a process in the slot.
        """
        with self._lock:
            found = self._lives[rank]
            if found.state.phase is RankPhase.WAITING and found.state.life < life:
                self._lives[rank] = replace(found, state=replace(found.state, life=life))

    def note_reported(self, states: Sequence[RankState]) -> None:
        """Record that the launcher has received `states`."""
        ended = {state.rank: state.life for state in states if state.phase in ENDED}
        with self._lock:
            for rank, life in self._lives.items():
                if ended.get(rank) == life.state.life and life.state.phase in ENDED:
                    self._lives[rank] = replace(life, reported=True)

    def reported(self, rank: int) -> bool:
        """Return whether the launcher knows how the last process of slot `rank` ended."""
        with self._lock:
            return self._lives[rank].reported

    def stopped(self, rank: int) -> bool:
        """Return whether SIGSTOP has stopped the rank's process."""
        with self._lock:
            life = self._lives[rank]
        return life.process is not None and life.runs and is_stopped(life.process.pid)

    def clear(self, rank: int) -> None:
        """Kill the processes in an ended rank's process group."""
        with self._lock:
            life = self._lives[rank]
        if life.process is not None and life.state.phase in ENDED:
            signal_group(life.process.pid, signal.SIGKILL)

    def sweep(self) -> None:
        """Kill all remaining processes of ended ranks, including those in other process groups, and wait for their
        end."""
        for life in self._lives.values():
            if life.process is not None:
                signal_group(life.process.pid, signal.SIGKILL)
        deadline = time.monotonic() + _SWEEP_S
        while kill_descendants() and time.monotonic() < deadline:
            reap()
            time.sleep(0.01)
        reap()

    @property
    def started(self) -> bool:
        """Whether any rank was started."""
        with self._lock:
            return any(life.state.phase is not RankPhase.WAITING for life in self._lives.values())

    @property
    def all_ended(self) -> bool:
        """Whether no rank is running."""
        return not self._running()

    def not_started(self) -> list[tuple[int, str]]:
        """Return the ranks whose program could not be executed, each with its error message."""
        with self._lock:
            states = [life.state for life in self._lives.values() if life.process is None]
        return [(state.rank, state.log_tail[-1]) for state in states if state.phase is RankPhase.FAILED]

    def first_failure(self) -> RankState | None:
        """Return the state of the rank of this worker that failed first; None if none failed."""
        with self._lock:
            failed = [life.state for life in self._lives.values() if life.state.phase is RankPhase.FAILED]
        return min(failed, key=lambda state: state.exit_order, default=None)

    def states(self, complete: Callable[[int], bool], tail: Callable[[int], tuple[str, ...]]) -> tuple[RankState, ...]:
        """Return the states of all ranks. An ended rank counts as running until its output is `complete`, so that
        `tail`, its last lines, can be sent with its failure."""
        now = time.monotonic()
        with self._lock:
            return tuple(life.reported_state(now, complete, tail) for life in self._lives.values())

    def _running(self) -> list[RankProcess]:
        with self._lock:
            lives = list(self._lives.values())
        return [life.process for life in lives if life.process and life.runs]

    def note_exit(self, rank: int, code: int, problem: RankState | None = None) -> bool:
        """Record that the rank's first process has ended with `code`, negative for a signal. Return whether the rank
        has ended.

        Other processes of a rank that is being stopped may still run. `problem`: state to report although `code` is 0.
        """
        self._exits += 1
        why = self.end_cause(rank, code) if code else ""
        with self._lock:
            life = self._lives.get(rank, RankLife(RankState(rank, RankPhase.RUNNING)))
            last = life.ended(code, why, problem, self._exits)
            self._lives[rank] = replace(life, last=last)
        over = life.stop is None or life.stop.advance()
        if over:
            self._conclude(rank, last)
        return over

    def _conclude(self, rank: int, last: RankState) -> None:
        """Record `last` as the rank's final state."""
        with self._lock:
            life = self._lives[rank]
            self._lives[rank] = replace(life, state=last, exited_at=time.monotonic())
        if life.adopted:
            self.clear(rank)

    def _fail_to_start(self, state: RankState, program: str, exc: OSError) -> None:
        self._exits += 1
        state = replace(
            state,
            phase=RankPhase.FAILED,
            exit_code=127 if isinstance(exc, FileNotFoundError) else 126,
            exit_order=self._exits,
            log_tail=(f"ringtrain: cannot execute {program}: {exc.strerror}",),
            reason=Reason.CANNOT_START if exc.errno in NO_PROGRAM else None,
        )
        with self._lock:
            self._lives[state.rank] = RankLife(state, exited_at=time.monotonic())


@dataclass(frozen=True)
class RankLife:
    """Record of a rank's process. In an elastic job, a slot has one process after the other.

    `adopted`: whether another program started the process and reports its end. `dismissed`: whether the rank was
    ordered to leave. `reason`: why the rank leaves or is stopped. `last`: state of the rank after the end of its first
    process; it becomes the rank's final state once the rank's other processes have ended. `reported`: whether the
    launcher knows how the rank ended.
    """

    state: RankState
    process: RankProcess | None = None
    stop: RankStop | None = None
    exited_at: float = 0.0
    adopted: bool = False
    dismissed: bool = False
    reason: str = ""
    last: RankState | None = None
    reported: bool = False

    @property
    def runs(self) -> bool:
        """Whether any process of the rank is running."""
        return self.process is not None and self.state.phase is RankPhase.RUNNING

    @property
    def is_stopping(self) -> bool:
        """Whether the rank is running and was ordered to stop."""
        return self.runs and self.stop is not None and self.stop.is_requested

    def ended(self, code: int, why: str, problem: RankState | None, order: int) -> RankState:
        """Return the rank's state after its process has ended with `code`, negative for a signal.

        `why`: cause of a failure. `problem`: state to report instead, for a rank that failed although its code is 0.
        `order`: position among the exits of this pod's ranks.
        """
        if problem is not None:
            return replace(problem, exit_order=order, life=self.state.life, formation=self.state.formation)
        sent = self.stop.sent if self.stop is not None else frozenset[int]()
        phase = RankPhase.STOPPED if self.dismissed else exit_phase(code, sent)
        return replace(
            self.state,
            phase=phase,
            exit_code=128 - code if code < 0 else code,
            signal=signal_name(-code) if code < 0 else "",
            exit_order=order,
            parked=False,
            message={RankPhase.STOPPED: self.reason, RankPhase.FAILED: why}.get(phase, ""),
        )

    def reported_state(
        self, now: float, complete: Callable[[int], bool], tail: Callable[[int], tuple[str, ...]]
    ) -> RankState:
        """Return the state that the launcher sees: an ended rank appears as running until its output is complete."""
        state = self.state
        if state.phase not in ENDED:
            return state
        if not complete(state.rank):
            shown = RankState(state.rank, RankPhase.RUNNING, life=state.life, formation=state.formation)
            return replace(shown, committed=state.committed, lost_steps=state.lost_steps)
        lines = state.log_tail
        if state.phase is RankPhase.FAILED and not lines:
            lines = tail(state.rank)
        return replace(state, exited_ago_s=now - self.exited_at, log_tail=lines)


def exit_phase(code: int, sent: Set[int]) -> RankPhase:
    """Return the phase (succeeded, failed, stopped) after exit `code`, negative for a signal. `sent`: signals that were
    sent to stop the rank.

    After a request to stop, any code but 0 counts as stopped, except death by a signal that was not sent.
    """
    if code == 0:
        return RankPhase.SUCCEEDED
    if not sent:
        return RankPhase.FAILED
    stopped_by_us = code > 0 or -code in sent or -code == SIGTERM
    return RankPhase.STOPPED if stopped_by_us else RankPhase.FAILED
