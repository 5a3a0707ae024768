"""`ringtrain agent`: register with the launcher, run the ranks of one worker, send all output, end with the attempt.

The main loop handles events until the attempt is over for this worker.
"""

import logging
import queue
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ringtrain.errors import ConfigurationError, counted
from ringtrain.shared import contract
from ringtrain.shared.processes import become_subreaper, signal_handler
from ringtrain_job.agent.config import LEAVE_S, AgentConfig
from ringtrain_job.agent.coordinator import Event, LeaveNoted, Registered
from ringtrain_job.agent.elastic.slots import RankProgram
from ringtrain_job.agent.pod import AgentPod
from ringtrain_job.control.model import (
    Failure,
    Form,
    Outcome,
    Prepare,
    Reason,
    Refusal,
    Release,
    Start,
    Stop,
    Verdict,
)
from ringtrain_job.control.termination import termination_message, write_termination_message
from ringtrain_job.logs.journal import LogStream
from ringtrain_job.logs.records import prefixed_records
from ringtrain_job.logs.store import LogChunk

log = logging.getLogger(__name__)


def run_agent(config: AgentConfig, command: Sequence[str], inherited: Mapping[str, str]) -> int:
    """Run `command` as the ranks of one worker until the attempt ends; return the agent's exit code.

    `inherited`: the pod's environment, to which the ranks' variables are added.
    """
    if not command and config.agents_start_ranks:
        raise ConfigurationError("an agent of a ring job needs a command: `ringtrain agent -- CMD…`")
    become_subreaper()
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def deliver(number: int, _: object) -> None:
        events.put(signal.Signals(number))  # SimpleQueue.put is reentrant

    with ExitStack() as stack:
        stack.enter_context(signal_handler(deliver, signal.SIGCHLD, signal.SIGTERM, signal.SIGINT))
        if config.data_workers:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="ringtrain-data-"))
            config = replace(config, data_file=Path(directory) / "workers.json")
        pod = AgentPod(config, RankProgram(command, inherited), events, stack)
        ending = Lifecycle(config, pod, events).run()
        lost = _print_unsent_lines(pod.unshipped())
        if lost:
            log.error("the launcher did not store %s; see above", counted(lost, "log line"))
        message = termination_message(ending.verdict, config.job.attempt, config.world_size, lost_log_lines=lost)
        write_termination_message(config.termination, message)
    return ending.exit_code


def _print_unsent_lines(chunks: Iterable[LogChunk]) -> int:
    """Print log lines that the launcher did not store to stdout; return their number."""
    count = 0
    for chunk in chunks:
        if chunk.stream is LogStream.LOG:
            count += chunk.lines
            with suppress(OSError):  # stdout is closed
                clear = b"\r\x1b[K" if sys.stdout.isatty() else b""  # the launcher's progress line
                sys.stdout.buffer.write(clear + prefixed_records(chunk.rank, chunk.data))
                sys.stdout.buffer.flush()
    return count


_TICK_S = 0.5
# Shorter while ranks stop: the end of a process that is not a child is only seen by polling.
_STOPPING_TICK_S = 0.1


@dataclass(frozen=True)
class AgentEnding:
    """The agent's exit code, and the verdict for its termination message."""

    exit_code: int
    verdict: Verdict


class Lifecycle:
    """Main loop of the agent. Runs on the main thread, which starts the ranks and receives signals."""

    def __init__(self, config: AgentConfig, pod: AgentPod, events: "queue.SimpleQueue[Event]") -> None:
        self._config = config
        self._pod = pod
        self._events = events
        self._began = time.monotonic()
        self._verdict: Verdict | None = None
        self._ending: AgentEnding | None = None
        self._term_at: float | None = None
        self._leave_at: float | None = None
        self._notice_ends_at: float | None = None

    def run(self) -> AgentEnding:
        """Handle events until this worker's part of the attempt has ended. All ranks have ended when it returns."""
        try:
            while self._ending is None:
                event = self._next_event()
                if event is not None:
                    self._handle(event)
                self._check_clocks()
            return self._ending
        finally:
            self._pod.ranks.kill()
            self._pod.ranks.sweep()

    def _next_event(self) -> Event | None:
        try:
            return self._events.get(timeout=_STOPPING_TICK_S if self._pod.ranks.stopping else _TICK_S)
        except queue.Empty:
            return None

    def _handle(self, event: Event) -> None:
        match event:
            case signal.Signals() as number:
                self._on_signal(number)
            case Start(world):
                if not self._pod.ranks.started and self._verdict is None and not self._pod.leaving:
                    self._pod.start_ranks(world)
            case Stop(verdict):
                self._verdict = verdict
                failure = verdict.failure
                if failure is None or failure.reason is Reason.AGENT_LOST:  # or a pod was ordered to stop
                    self._pod.saving = True
                    self._stop_ranks(self._config.save_s)
                elif failure.reason is Reason.NOT_FINITE:  # no rank was lost: there is nothing to wait for
                    self._stop_ranks()
                else:
                    self._term_at = time.monotonic() + self._config.follow_s
                self._pod.stopping = True
                self._pod.coordinator.changed()
            case Release(verdict):
                self._pod.reap()  # ranks that ended before now ended by themselves
                if self._pod.leaving and verdict.failure is not None and verdict.failure.pod == self._config.pod:
                    self._end_by_signal()  # this pod's stop request is the reason for the end of the attempt
                else:
                    self._ending = AgentEnding(agent_exit_code(verdict, self._own_ranks()), verdict)
            case Refusal(reason, misconfigured):
                self._on_refused(reason, misconfigured)
            case Registered(histories):
                self._pod.continue_from(histories)
            case LeaveNoted():
                self._end_by_signal()
            case Prepare() | Form():
                self._pod.follow(event)
            case work:
                work()

    def _on_signal(self, number: signal.Signals) -> None:
        if number == signal.SIGCHLD:
            self._pod.reap()
            return
        if self._pod.leaving:
            if number == signal.SIGINT:  # a second Ctrl-C ends the grace period
                self._pod.ranks.kill()
                self._notice_ends_at = None
            return
        log.info("stopping: received %s", number.name)
        self._pod.leaving = number.name
        if self._config.living and self._verdict is None:
            # The launcher forms the next world without these ranks: they hand over their state and receive an order to
            # leave.
            self._notice_ends_at = time.monotonic() + self._config.notice_s
        else:
            self._pod.saving = True
            self._stop_ranks(self._config.save_s)
        self._pod.coordinator.changed()

    def _on_refused(self, reason: str, misconfigured: bool) -> None:
        log.error("the launcher refused this worker: %s", reason)
        if self._pod.ranks.started:
            self._fail(contract.EXIT_GANG_STOPPED, Reason.LAUNCHER_FAILED, reason)
        elif misconfigured:
            self._fail(contract.EXIT_BAD_CONFIGURATION, Reason.BAD_CONFIGURATION, reason)
        else:
            self._fail(contract.EXIT_NOT_ASSEMBLED, Reason.NOT_ASSEMBLED, reason)

    def _stop_ranks(self, within_s: float | None = None) -> None:
        self._pod.reap()  # ranks that ended before now ended by themselves
        self._pod.ranks.stop(self._config.grace_s if within_s is None else within_s)

    def _check_clocks(self) -> None:
        now = time.monotonic()
        if self._term_at is not None and now >= self._term_at:
            self._term_at = None
            self._stop_ranks()
        if self._pod.ranks.stopping:
            self._pod.reap()
        if self._ending is not None:
            return
        if self._verdict is None:
            self._pod.act()
        if self._pod.leaving:
            self._check_leaving(now)
        elif not self._pod.coordinator.registered:
            if now - self._began >= self._config.start_timeout_s:
                self._not_reached(self._config.start_timeout_s)
        elif self._pod.coordinator.silent_s() >= self._config.launcher_lost_s:
            self._launcher_lost()

    def _check_leaving(self, now: float) -> None:
        if self._notice_ends_at is not None and now >= self._notice_ends_at:
            self._notice_ends_at = None
            self._stop_ranks()
        if not self._pod.ranks.all_ended:
            return
        if self._leave_at is None:
            self._leave_at = now + LEAVE_S
        if now >= self._leave_at or not self._pod.coordinator.registered:
            self._end_by_signal()

    def _end_by_signal(self) -> None:
        number = signal.Signals[self._pod.leaving]
        self._ending = AgentEnding(128 + number, Verdict(Outcome.STOPPED, 128 + number))

    def _not_reached(self, seconds: float) -> None:
        problem = self._pod.coordinator.last_problem or "it does not answer"
        where = self._config.launcher_address
        message = f"cannot reach the launcher at {where} within {seconds:g} s ({problem})"
        self._fail(contract.EXIT_NOT_ASSEMBLED, Reason.NOT_ASSEMBLED, message)

    def _launcher_lost(self) -> None:
        if not self._pod.ranks.started:
            self._not_reached(self._config.launcher_lost_s)
            return
        config = self._config
        message = f"the launcher at {config.launcher_address} has not answered for {config.launcher_lost_s:g} s"
        if self._verdict is not None:  # only its release is missing
            log.warning("%s; the attempt had already ended", message)
            self._stop_and_wait()
            self._ending = AgentEnding(agent_exit_code(self._verdict, self._own_ranks()), self._verdict)
            return
        own = self._pod.ranks.first_failure()
        code = own.exit_code if own is not None and own.exit_code else contract.EXIT_GANG_STOPPED
        self._fail(code, Reason.LAUNCHER_FAILED, message)

    def _fail(self, code: int, reason: Reason, message: str) -> None:
        log.error("%s", message)
        self._stop_and_wait()
        failure = Failure(reason, message, pod=self._config.pod, node=self._config.node)
        self._ending = AgentEnding(code, Verdict(Outcome.FAILED, code, failure=failure))

    def _stop_and_wait(self) -> None:
        self._stop_ranks()
        # A process that is stuck in the kernel survives even SIGKILL: leave it to the end of this container.
        give_up_at = time.monotonic() + 3 * self._config.grace_s
        while not self._pod.ranks.all_ended and time.monotonic() < give_up_at:
            event = self._next_event()
            if callable(event):
                event()
            self._pod.reap()

    def _own_ranks(self) -> range:
        return range(self._config.first_rank, self._config.first_rank + self._config.slots)


def agent_exit_code(verdict: Verdict, own_ranks: range) -> int:
    """Return the exit code of the agent that runs `own_ranks`, for the attempt's `verdict`."""
    failure = verdict.failure
    if failure is None or failure.reason in (Reason.NOT_ASSEMBLED, Reason.NOT_FINITE):
        return verdict.exit_code
    of_a_rank = failure.reason in (Reason.RANK_FAILED, Reason.CANNOT_START)
    if of_a_rank and failure.rank in own_ranks and failure.exit_code is not None:
        return failure.exit_code
    return contract.EXIT_GANG_STOPPED
