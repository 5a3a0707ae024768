"""Record of one rank's process: its state, how it is stopped, how it ended."""

from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from signal import SIGTERM

from ringtrain.shared.processes import RankProcess, signal_name
from ringtrain_job.agent.stopping import RankStop
from ringtrain_job.control.model import ENDED, RankPhase, RankState


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
