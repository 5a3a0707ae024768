"""`ringtrain launcher`: wait for all agents, watch the ranks, decide how the attempt ended, store the last logs."""

import errno
import logging
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from ringtrain.errors import ConfigurationError
from ringtrain.shared import contract
from ringtrain.shared.data_members import DATA_SERVICE
from ringtrain.shared.masking import shown_command
from ringtrain.shared.processes import signal_handler
from ringtrain.shared.rpc import RpcPeer
from ringtrain_job.control.async_server import AsyncServer
from ringtrain_job.control.model import Outcome, Reason, Release, Verdict
from ringtrain_job.control.termination import termination_message, write_termination_message
from ringtrain_job.control.wire import COORDINATOR
from ringtrain_job.launcher.backend import Backend, HandOver
from ringtrain_job.launcher.config import LauncherConfig
from ringtrain_job.launcher.data_members import DataMembers
from ringtrain_job.launcher.gang import Gang
from ringtrain_job.launcher.http import StatusServer
from ringtrain_job.launcher.not_finite import verdict_on_loss
from ringtrain_job.launcher.open_files import allow_open_files, open_log_limit
from ringtrain_job.launcher.outcome import (
    read_verdict,
    repeat_outcome,
    with_refused_lines,
    write_outcome,
    write_refusal,
)
from ringtrain_job.launcher.registry import Attempt, BackendContext, open_backend, open_observers
from ringtrain_job.launcher.run_hosts import RunHosts
from ringtrain_job.launcher.service import CoordinatorService, DataService
from ringtrain_job.launcher.sites import WorkerSites
from ringtrain_job.launcher.status import LauncherReports, StatusSnapshot
from ringtrain_job.logs.about import AboutFile
from ringtrain_job.logs.events import EventsFile
from ringtrain_job.logs.layout import AttemptFiles
from ringtrain_job.logs.store import LogStore

log = logging.getLogger(__name__)

# Longest interval between two checks of the clock and of signals.
_TICK_S = 0.2
# An iteration longer than _SHORT_S is followed by a pause of _REST times its duration.
_REST = 4
_SHORT_S = 0.02
# Errors that a retry does not fix, unlike an unavailable file server.
_NO_PLACE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENOSPC, errno.EDQUOT})


def run_launcher(config: LauncherConfig, command: Sequence[str] = (), hosts: RunHosts | None = None) -> int:
    """Run the launcher of one attempt from start to end; return its exit code.

    `command`: the launcher's command, if its backend runs one. `hosts`: hosts of the run if they
    may change.
    """
    files = AttemptFiles.of(config.log_root, config.job.namespace, config.job.name, config.job.attempt)
    with ExitStack() as stack:
        stop = StopFlag()
        stack.enter_context(signal_handler(stop, signal.SIGTERM, signal.SIGINT))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # `ringtrain run` blocks it while this starts
        store = _open_store(config, files, open_log_limit(config, allow_open_files(config.open_files)))
        stack.callback(store.close)
        if not store.resumed:
            stack.enter_context(_refusals_stored(config, files))
        gang = Gang(config, time.monotonic)
        status = StatusSnapshot(config, gang, store, LauncherReports(config.world_size, config.fail_on_nan))
        launcher = _LauncherProcess(status, stop)
        is_over = store.resumed and files.outcome.exists()
        if is_over:
            return _repeat_launcher_outcome(Attempt(status, is_over, lambda: stop.asked), stack)
        attempt = Attempt(status, gives_up=launcher.has_given_up)
        status.about = AboutFile(files, _run_description(config, command))
        status.observers = open_observers(attempt, stack)
        sites = WorkerSites(dict(enumerate(config.sites)), bool(config.site_label))
        status.backend = backend = open_backend(BackendContext(status, sites, command, hosts))
        stack.callback(backend.close)
        status.follow()
        _open_ports(launcher, sites, stack)
        backend.begin()
        verdict = launcher.supervise()
        if verdict is None:
            return _hand_over(status)
        launcher.drain(verdict)
        verdict = with_refused_lines(launcher.conclude(verdict), store)
        _store_end(status, verdict)
        launcher.release(verdict)
        _store_end(status, verdict)  # with the reports of ranks that ended after a second Ctrl-C
        status.observers.ended(verdict)
        if left := status.observers.unfinished():
            write_termination_message(config.termination, _launcher_termination_message(status, verdict, left))
    return verdict.exit_code


@contextmanager
def _refusals_stored(config: LauncherConfig, files: AttemptFiles) -> Iterator[None]:
    """Store the outcome of an attempt that ends because the body, such as an observer, refuses the configuration."""
    try:
        yield
    except ConfigurationError as exc:
        write_refusal(config, files, exc)
        raise


def _run_description(config: LauncherConfig, command: Sequence[str]) -> dict[str, Any]:
    """Return the command and image of the run, if the launcher knows them."""
    run = {"command": list(shown_command(command)), "image": config.image}
    return {name: value for name, value in run.items() if value}


def _repeat_launcher_outcome(attempt: Attempt, stack: ExitStack) -> int:
    """Report the outcome of an attempt that an earlier launcher has ended, let observers finish, and return the exit
    code."""
    verdict = read_verdict(attempt.files)
    observers = open_observers(attempt, stack)
    observers.ended(verdict)
    repeat_outcome(attempt.config, attempt.files, observers.unfinished())
    return verdict.exit_code


def _store_end(status: StatusSnapshot, verdict: Verdict) -> None:
    """Write the outcome and the termination message of the attempt."""
    message = _launcher_termination_message(status, verdict)
    write_outcome(status.store.files, verdict, message)
    write_termination_message(status.config.termination, message)


def _launcher_termination_message(
    status: StatusSnapshot, verdict: Verdict, unfinished: Mapping[str, Any] | None = None
) -> bytes:
    return termination_message(
        verdict,
        status.config.job.attempt,
        status.world_size,
        status.progress(),
        [status.store.merged_lines.get(rank, 0) for rank in range(status.config.world_size)],
        unfinished,
    )


class _LauncherProcess:
    """Main loop of the launcher: asks the backend how the attempt ends, and checks for a loss that is not finite."""

    def __init__(self, status: StatusSnapshot, stop: "StopFlag") -> None:
        self._config, self._gang = status.config, status.gang
        self._status, self._stop = status, stop
        self._ticked = time.monotonic()
        self._waited_s = 0.0
        self.events = EventsFile(status.store.files)

    @property
    def status(self) -> StatusSnapshot:
        return self._status

    def healthy(self) -> bool:
        """Return whether the main loop is still running."""
        return time.monotonic() - self._ticked < self._config.timeout_s

    def has_given_up(self) -> bool:
        """Return whether a person has requested an immediate end. Calling this counts as progress of the main loop."""
        self._ticked = time.monotonic()
        return self._stop.at_once

    def supervise(self) -> Verdict | None:
        """Watch the attempt until it ends; return the verdict, or None if another launcher will continue it."""
        backend = self._backend
        while True:
            ended: Verdict | HandOver | None = self._divergence_verdict() or backend.tick()
            if ended is None and self._stop.asked:
                ended = backend.handle_stop_request(by_person=self._stop.interrupts > 0)
            if isinstance(ended, HandOver):
                return None
            if ended is not None:
                return self._conclude(ended)
            self._tick()

    def conclude(self, verdict: Verdict) -> Verdict:
        """Return the final verdict once all reports have arrived, because a late loss may not be finite."""
        failure = verdict.failure
        if verdict.outcome is Outcome.STOPPED or (failure is not None and failure.reason is Reason.NOT_FINITE):
            return verdict
        diverged = self._divergence_verdict()
        return self._conclude(diverged) if diverged else self._with_missing_loss(verdict)

    def _with_missing_loss(self, verdict: Verdict) -> Verdict:
        """Return the verdict; after a success, add a warning if --fail-on-nan is set but no rank reported a loss."""
        with self._status.reports as reports:
            has_loss = reports.has_loss
        if verdict.outcome is not Outcome.SUCCEEDED or not self._config.fail_on_nan or has_loss:
            return verdict
        metrics = "--metrics" if self._config.is_of_run_command else "spec.logs.metrics"
        warning = (
            f"{self._config.nan_setting} had no effect: no rank reported a loss; call ringtrain.report(step, "
            f"loss=...), or name the loss in printed lines by {metrics}"
        )
        log.info("warning: %s", warning)
        return replace(verdict, warning="; ".join(filter(None, [verdict.warning, warning])))

    def drain(self, verdict: Verdict) -> None:
        """Order all agents to stop their ranks, and store the last log lines, for at most `drain_s`. Record the end."""
        backend, deadline = self._backend, time.monotonic() + self._config.drain_s
        backend.stop(verdict)
        while not (is_quiet := backend.is_quiet()) and time.monotonic() < deadline and not self._stop.at_once:
            self._tick()
        # Ranks that save or ignore SIGTERM end long after the verdict; the run's duration includes that time.
        self.events.record_once("Ended", "all ranks have ended" if is_quiet else "some ranks may still be running")

    def release(self, verdict: Verdict) -> None:
        """Let all agents exit, and wait until they have disconnected."""
        self._gang.give(Release(verdict))
        deadline = time.monotonic() + self._config.settle_s
        while not self._gang.all_detached() and time.monotonic() < deadline:
            self._tick()

    @property
    def _backend(self) -> Backend:
        backend = self._status.backend
        assert backend is not None
        return backend

    def _conclude(self, verdict: Verdict) -> Verdict:
        verdict = self._with_log_tail(verdict)
        self._status.verdict = verdict
        self._record_status()
        if verdict.failure is None:
            log.info("the attempt ended: %s", verdict.outcome.value)
            if verdict.warning:
                log.info("warning: %s", verdict.warning)  # not log.warning: the summary of `ringtrain run` has it too
        else:
            log.info("the attempt failed: %s", verdict.failure.message)
        return verdict

    def _divergence_verdict(self) -> Verdict | None:
        """Return a failed verdict if --fail-on-nan is set and a loss is not finite; None otherwise."""
        if not self._config.fail_on_nan:
            return None
        with self._status.reports as reports:
            loss = reports.first_bad_loss
        return verdict_on_loss(self._gang.view(), loss, self._config.nan_setting) if loss else None

    def _with_log_tail(self, verdict: Verdict) -> Verdict:
        """Return the verdict with the failed rank's last log lines from the store, if its agent could not send them."""
        failure = verdict.failure
        if failure is None or failure.rank is None or failure.log_tail:
            return verdict
        return replace(verdict, failure=replace(failure, log_tail=self._status.store.tail(failure.rank)))

    def _tick(self) -> None:
        now = time.monotonic()
        took, self._ticked = now - self._ticked, now
        self._record_status()
        # While thousands of agents register, the gang changes permanently; evaluating it must not take all the time.
        if (rest := _REST * (took - self._waited_s)) > _SHORT_S:
            time.sleep(min(rest, _TICK_S))
        self._gang.wait(_TICK_S)
        self._waited_s = time.monotonic() - now
        if self._status.observers.follows_gang:
            self._status.observers.changed(self._gang.view())

    def _record_status(self) -> None:
        status = self._status
        failure = status.verdict.failure if status.verdict else None
        registered = self._gang.registered
        if registered >= self._config.workers:
            self.events.record_once("Joined", f"all workers have registered: {registered}")
        self.events.record_state(status.state, status.backend_status(), failure.message if failure else "")
        if status.first_progress is not None:
            self.events.record_once("Step", "the first step was reported", status.first_progress)


class StopFlag:
    """Requests to stop this process. SIGINT (a person or `ringtrain run`) is for the whole job; a second one requests
    an immediate end. SIGTERM is sent, possibly repeatedly, to a pod that is deleted."""

    def __init__(self) -> None:
        self.asked = False
        self.interrupts = 0

    def __call__(self, number: int = signal.SIGTERM, _: object = None) -> None:
        self.asked = True
        self.interrupts += number == signal.SIGINT

    @property
    def at_once(self) -> bool:
        """Whether an immediate end was requested."""
        return self.interrupts > 1


def _hand_over(status: StatusSnapshot) -> int:
    """Exit without ending the attempt, so that another launcher continues: send no order and store no outcome. Return
    the exit code."""
    log.warning(
        "stopping, but the job continues: its ranks train without a launcher and wait for a new one at the next "
        "change of their world, for at most %g s",
        status.config.start_timeout_s,
    )
    status.observers.ended(None)
    verdict = Verdict(Outcome.STOPPED, 128 + signal.SIGTERM)
    message = _launcher_termination_message(status, verdict, status.observers.unfinished())
    write_termination_message(status.config.termination, message)
    return verdict.exit_code


def _open_store(config: LauncherConfig, files: AttemptFiles, logs_open: int) -> LogStore:
    try:
        return LogStore(files, config.job.uid, config.job.attempt, logs_open)
    except OSError as exc:
        if exc.errno not in _NO_PLACE:
            raise
        raise ConfigurationError(
            f"{contract.ENV_LOG_DIR}={str(config.log_root)!r}: cannot store logs in this folder ({exc}); mount a "
            f"volume that user {os.getuid()} can write (securityContext.fsGroup) and that has space"
        ) from exc


def _open_ports(launcher: _LauncherProcess, sites: WorkerSites, stack: ExitStack) -> None:
    status, config, gang = launcher.status, launcher.status.config, launcher.status.gang

    def on_pods(events: list[dict[str, Any]], about: dict[str, str]) -> None:
        launcher.events.record_pod_events(events)
        if status.about is not None:
            status.about.override(about)

    http = StatusServer(
        config.status_port,
        status.status,
        status.brief_status,
        launcher.healthy,
        everywhere=config.secrets.tls is not None,
        tokens=config.status_tokens,
        change_tokens=config.tokens,
        on_workers=status.backend.request_workers if status.backend else None,
        on_pods=on_pods,
        on_sites=sites.hear if config.site_label else None,
        is_held=config.ports_held,
        routes=status.observers.all_routes,
    )
    stack.callback(http.close)
    status.observers.listening(http.port)
    data = DataMembers(config, time.monotonic)
    status.data = data.status if config.data_workers else None

    service = CoordinatorService(gang, status.store, config.job.attempt, data)
    stack.callback(service.close)
    server = AsyncServer.start(
        config.port,
        config.secrets,
        RpcPeer(contract.ROLE_WORKER, config.job.uid),
        clients=config.workers + config.data_workers,
        services=[(COORDINATOR, service), (DATA_SERVICE, DataService(data))],
        others={DATA_SERVICE.full_name: RpcPeer(contract.ROLE_DATA, config.job.uid)},
        is_held=config.ports_held,
    )
    stack.callback(server.close, 1.0)
    log.info("waiting for workers (%d) on port %d, status on port %d", config.workers, server.port, http.port)
