"""`ringtrain launcher`: barrier, watch, verdict, drain."""

import errno
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from ringtrain.errors import ConfigurationError, some_of
from ringtrain.shared import contract
from ringtrain.shared.data_members import DATA_SERVICE
from ringtrain.shared.gen import coordinator_pb2_grpc
from ringtrain.shared.masking import shown_command
from ringtrain.shared.processes import signal_handler
from ringtrain.shared.rpc import RpcPeer
from ringtrain_job.control.async_server import ControlAsyncServer
from ringtrain_job.control.model import Failure, Outcome, Reason, Release, Start, Stop, Verdict
from ringtrain_job.control.termination import termination_message, write_termination_message
from ringtrain_job.launcher.config import LauncherConfig
from ringtrain_job.launcher.console import LauncherConsole
from ringtrain_job.launcher.data_members import LauncherDataMembers
from ringtrain_job.launcher.discovery import HostDiscovery
from ringtrain_job.launcher.elastic import LauncherElasticWorld
from ringtrain_job.launcher.gang import LauncherGang, make_world
from ringtrain_job.launcher.hosts import DEFAULT_COOLDOWN, ONLY_HERE, HostControl, HostTable
from ringtrain_job.launcher.http import StatusServer
from ringtrain_job.launcher.live_page import LauncherLivePage
from ringtrain_job.launcher.mpi.job import MpirunJob
from ringtrain_job.launcher.mpi.verdict import NO_MPI_INIT, decide_mpi
from ringtrain_job.launcher.not_finite import verdict_on_loss
from ringtrain_job.launcher.outcome import keep_timeline, leave_report, repeat_outcome, write_outcome
from ringtrain_job.launcher.page_server import LauncherPageServer, LauncherRunPage
from ringtrain_job.launcher.progress import follow_reports, say_total
from ringtrain_job.launcher.service import LauncherCoordinatorService, LauncherDataService
from ringtrain_job.launcher.sites import WorkerSites
from ringtrain_job.launcher.status import LauncherReports, LauncherStatusSnapshot
from ringtrain_job.launcher.telemetry import OtlpTelemetry, open_telemetry
from ringtrain_job.launcher.verdict import GangView, VerdictPatience, decide_verdict, with_warning
from ringtrain_job.logs.about import LogAboutFile
from ringtrain_job.logs.events import LogEventsFile
from ringtrain_job.logs.layout import AttemptFiles
from ringtrain_job.logs.shipping import LogShipping, Unshipped
from ringtrain_job.logs.store import LogStore
from ringtrain_job.page.access import PageAccess, keep_page, page_token
from ringtrain_job.sinks.feed import SinkProcesses

log = logging.getLogger(__name__)

# How often the main loop looks at the clock and at signals when nothing else wakes it.
_TICK_S = 0.2
# A look that took longer than a moment is followed by so many times as long without one.
_REST = 4
_SHORT_S = 0.02
# Logs of ranks that are open at a time, at the least.
_FEWEST_LOGS = 16
# What trying again does not mend, unlike a file server that is away.
_NO_PLACE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENOSPC, errno.EDQUOT})


def run_launcher(config: LauncherConfig, command: Sequence[str] = (), hosts: HostControl = ONLY_HERE) -> int:
    """Bring the gang of one attempt together, watch it to its end, and return the launcher's exit code.

    `command`: what the launcher of an MPI job runs; `hosts`: of an elastic run with a discovery script.
    """
    logs_open = most_logs_open(config, allow_open_files(config.open_files))
    files = AttemptFiles.of(config.log_root, config.job.namespace, config.job.name, config.job.attempt)
    store = _open_store(config, files, logs_open)
    if store.resumed and files.outcome.exists():
        return _repeat_launcher_outcome(config, store)
    gang = LauncherGang(config, time.monotonic)
    snapshot = LauncherStatusSnapshot(config, gang, store, LauncherReports(config.world_size))
    with ExitStack() as stack:
        stack.callback(store.close)
        mpi = _prepare_mpi(config, command, stack)
        launcher = _LauncherProcess(config, gang, snapshot, mpi)
        if config.elastic is not None:
            rules = replace(config.elastic.rules, sets_aside=hosts.agents is not None)
            settings = replace(config.elastic, rules=rules)
            launcher.elastic = LauncherElasticWorld(config, settings, snapshot, mpi=mpi, sites=launcher.sites)
            snapshot.elastic = launcher.elastic.status
        console = LauncherConsole(sys.stdout.fileno(), person=not config.node)
        stack.callback(console.close, 5.0)
        snapshot.about = LogAboutFile(files, _launcher_config_told(config, command))
        follow_reports(snapshot, console)
        launcher.telemetry = telemetry = open_telemetry(config, store)
        if telemetry is not None:
            stack.callback(telemetry.close)
        sinks = SinkProcesses(config.sinks, files, config.world_size, os.environ)
        stack.callback(sinks.close)
        stop = LauncherStopFlag()
        stack.enter_context(signal_handler(stop, signal.SIGTERM, signal.SIGINT))
        shipping = snapshot.shipping = _ship_logs(config, store, stop, stack)
        _open_ports(config, gang, snapshot, launcher, stack)
        with _hosts_followed(config, launcher, hosts):  # agents that end later were told to
            verdict = launcher.supervise(stop)
        if verdict is not None:
            console.show_progress(None, "")
            launcher.drain(verdict, stop)
            verdict = _with_refused_lines(launcher.conclude(verdict), store)
        if telemetry is not None:
            telemetry.end(gang.view(), verdict)
        if verdict is None:
            return _hand_over_logs(config, snapshot, launcher.ship_rest(shipping, stop))
        say_total(snapshot, console)
        message = _launcher_termination_message(config, snapshot, verdict)
        write_outcome(files, verdict, message)
        write_termination_message(config.termination, message)
        launcher.release(verdict)
        keep_timeline(files, config.timeline)
        if config.writes_report:
            leave_report(files, snapshot.metrics)
        if left := launcher.ship_rest(shipping, stop):
            write_termination_message(
                config.termination, _launcher_termination_message(config, snapshot, verdict, left)
            )
    return verdict.exit_code


def _launcher_config_told(config: LauncherConfig, command: Sequence[str]) -> dict[str, Any]:
    """What the launcher itself knows of what runs."""
    run = {"command": list(shown_command(command)), "image": config.image}
    return {name: value for name, value in run.items() if value}


def _repeat_launcher_outcome(config: LauncherConfig, store: LogStore) -> int:
    """End as the launcher before this one, which may not have shipped all logs."""
    stop = LauncherStopFlag()
    with ExitStack() as stack:
        stack.callback(store.close)
        stack.enter_context(signal_handler(stop, signal.SIGTERM, signal.SIGINT))
        shipping = _ship_logs(config, store, stop, stack)
        left = shipping.finish(config.timeout_s, lambda: stop.count > 0) if shipping else None
        return repeat_outcome(config, store.files, left)


def _with_refused_lines(verdict: Verdict, store: LogStore) -> Verdict:
    """The verdict, with a word on a success of which some lines are in no file."""
    if verdict.outcome is not Outcome.SUCCEEDED or not store.refused:
        return verdict
    warning = (
        f"the last lines of ranks are not all in {store.files.directory}, which could not be written "
        f"({store.refused}); their workers print the rest"
    )
    log.warning("%s", warning)
    return replace(verdict, warning="; ".join(filter(None, [verdict.warning, warning])))


def _launcher_termination_message(
    config: LauncherConfig, snapshot: LauncherStatusSnapshot, verdict: Verdict, unshipped: Unshipped | None = None
) -> bytes:
    return termination_message(
        verdict,
        config.job.attempt,
        snapshot.world_size,
        snapshot.progress(),
        [snapshot.store.merged_lines.get(rank, 0) for rank in range(config.world_size)],
        unshipped.document() if unshipped else None,
    )


def allow_open_files(count: int) -> int:
    """Have the system allow this process `count` open files, as far as its hard limit goes; how many it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return count if soft == resource.RLIM_INFINITY else soft


def most_logs_open(config: LauncherConfig, allowed: int) -> int:
    """How many ranks' logs may be open at a time where `allowed` files are. ConfigurationError where the workers'
    connections alone are too many."""
    left = allowed - config.connections
    if left < _FEWEST_LOGS:
        needed = config.connections + _FEWEST_LOGS
        raise ConfigurationError(
            f"this launcher may open {allowed} files (ulimit -n) and needs {needed} for "
            f"{config.workers} workers; raise the hard limit of containers on its node (LimitNOFILE of the "
            "container runtime), or ask for fewer workers with more slots each"
        )
    return min(left, config.world_size)


class _LauncherProcess:
    """The main loop. Everything it decides is decided by `launcher/verdict.py`, or by `launcher/formation.py`."""

    def __init__(
        self, config: LauncherConfig, gang: LauncherGang, snapshot: LauncherStatusSnapshot, mpi: MpirunJob | None
    ) -> None:
        self._config = config
        self._gang = gang
        self._mpi = mpi
        self._snapshot = snapshot
        self._ticked = time.monotonic()
        self._waited_s = 0.0
        self.events = LogEventsFile(snapshot.store.files)
        self.sites = WorkerSites(dict(enumerate(config.sites)), bool(config.site_label))
        self.elastic: LauncherElasticWorld | None = None
        self.telemetry: OtlpTelemetry | None = None

    def healthy(self) -> bool:
        """Whether the main loop still turns."""
        return time.monotonic() - self._ticked < self._config.timeout_s

    def supervise(self, stop: "LauncherStopFlag") -> Verdict | None:
        """Wait for all agents, start the gang, and watch it until the attempt is decided.

        None: this launcher of an elastic job is asked to leave, and the attempt goes on with another one.
        """
        verdict = self._follow(self.elastic, stop) if self.elastic else self._supervise_gang(stop)
        if verdict is None:
            return None
        return self._conclude(verdict)

    def _conclude(self, verdict: Verdict) -> Verdict:
        verdict = self._with_log_tail(verdict)
        self._snapshot.verdict = verdict
        self._record_status()
        if verdict.failure is None:
            log.info("the attempt ended: %s", verdict.outcome.value)
            if verdict.warning:
                log.warning("%s", verdict.warning)
        else:
            log.info("the attempt failed: %s", verdict.failure.message)
        return verdict

    def conclude(self, verdict: Verdict) -> Verdict:
        """The verdict when all reports are here: the last ones may come after the ends of their ranks."""
        failure = verdict.failure
        if verdict.outcome is Outcome.STOPPED or (failure is not None and failure.reason is Reason.NOT_FINITE):
            return verdict
        diverged = self._diverged()
        return self._conclude(diverged) if diverged else verdict

    def _diverged(self) -> Verdict | None:
        """The end of an attempt that is to fail by a loss that is not finite, where one was reported."""
        if not self._config.fail_on_nan:
            return None
        with self._snapshot.reports as reports:
            loss = reports.first_bad_loss
        return verdict_on_loss(self._gang.view(), loss) if loss else None

    def _follow(self, elastic: LauncherElasticWorld, stop: "LauncherStopFlag") -> Verdict | None:
        """Keep the world of an elastic job until the attempt is decided; None: until this pod is taken away."""
        asked_at: float | None = None
        while True:
            verdict = elastic.tick() or self._diverged()
            if verdict is not None:
                return verdict
            if stop.count:
                asked_at = time.monotonic() if asked_at is None else asked_at
                meant = stop.interrupted or stop.count > 1 or self._gang.all_leaving()
                if meant or not self._gang.any_rank_started():
                    return elastic.stopped()
                if time.monotonic() - asked_at >= self._config.hand_over_s:
                    return None
            self._tick()

    def _supervise_gang(self, stop: "LauncherStopFlag") -> Verdict:
        verdict = self._assemble(stop)
        if verdict is None:
            registrations = self._gang.registrations()
            members = self._config.in_order([registrations[index] for index in sorted(registrations)])
            self._gang.give(Start(make_world(members, self.sites.by_index)))
            self._snapshot.running_since = time.time()
            log.info("all workers are here; ranks: %d", self._config.world_size)
            if self._mpi is not None:
                self._mpi.start(members)
            verdict = self._watch(stop)
        return verdict

    def _with_log_tail(self, verdict: Verdict) -> Verdict:
        """A rank that hangs, or is gone with its agent, could not send the end of its log: it is in our files."""
        failure = verdict.failure
        if failure is None or failure.rank is None or failure.log_tail:
            return verdict
        return replace(verdict, failure=replace(failure, log_tail=self._snapshot.store.tail(failure.rank)))

    def drain(self, verdict: Verdict, stop: "LauncherStopFlag") -> None:
        """Have every agent stop its ranks and hand over its last lines, for at most `drain_s`."""
        # mpirun kills ranks a second after it was asked to stop: agents ask those that may save first.
        may_save = verdict.failure is None or verdict.failure.reason is Reason.AGENT_LOST
        deadline = time.monotonic() + self._config.drain_s
        if self._mpi is not None and not may_save:
            self._mpi.stop()
        self._gang.give(Stop(verdict))
        if self._mpi is not None and may_save:
            self._wait_until(self._gang.all_drained, deadline, stop)
            self._mpi.stop()
        self._wait_until(self._all_quiet, deadline, stop)

    def _wait_until(self, done: Callable[[], bool], deadline: float, stop: "LauncherStopFlag") -> None:
        while not done() and time.monotonic() < deadline and stop.count < 2:
            self._tick()

    def _all_quiet(self) -> bool:
        return self._gang.all_drained() and not (self._mpi and self._mpi.running)

    def release(self, verdict: Verdict) -> None:
        """Let the agents go."""
        self._gang.give(Release(verdict))
        deadline = time.monotonic() + self._config.settle_s
        while not self._gang.all_detached() and time.monotonic() < deadline:
            self._tick()

    def ship_rest(self, shipping: LogShipping | None, stop: "LauncherStopFlag") -> Unshipped | None:
        """Copy the end of the logs to the object store, if there is one; what is not in it after `timeout_s`."""

        def gives_up() -> bool:
            self._ticked = time.monotonic()
            return stop.count > 1

        return shipping.finish(self._config.timeout_s, gives_up) if shipping else None

    def _assemble(self, stop: "LauncherStopFlag") -> Verdict | None:
        started = time.monotonic()
        while self._gang.registered < self._config.workers or self._awaits_sites:
            # Agents whose ranks run already come back at once after a launcher was restarted, or never.
            patience = self._config.timeout_s if self._gang.any_rank_started() else self._config.start_timeout_s
            if stop.count:
                return _stopped_launcher_verdict(self._gang.view())
            if time.monotonic() - started >= min(patience, self._config.start_timeout_s):
                return _gang_not_assembled(self._config, self._gang)
            self._tick()
        if homeless := [index for index, site in sorted(self.sites.by_index.items()) if not site]:
            return _worker_without_site(self._config, self._gang, homeless[0])
        if self._mpi is not None and self._gang.any_rank_started():
            message = "the launcher was restarted while ranks were running, and their mpirun ended with it"
            failure = Failure(Reason.LAUNCHER_FAILED, message)
            return Verdict(Outcome.FAILED, contract.EXIT_GANG_STOPPED, self._gang.view().succeeded, failure)
        fresh = self._gang.fresh_workers()
        if self._gang.any_rank_started() and fresh:
            return _restarted_inside(self._gang.view(), fresh[0])
        return None

    @property
    def _awaits_sites(self) -> bool:
        return bool(self._config.site_label) and len(self.sites.by_index) < self._config.workers

    def _watch(self, stop: "LauncherStopFlag") -> Verdict:
        patience = VerdictPatience(self._config.lost_after_s, self._config.settle_s)
        while True:
            view = self._gang.view()
            verdict = self._diverged() or self._decide(view, time.monotonic(), patience)
            if verdict is not None:
                return verdict
            if stop.count:
                return _stopped_launcher_verdict(view)
            self._tick()

    def _decide(self, view: GangView, now: float, patience: VerdictPatience) -> Verdict | None:
        if self._mpi is None:
            return with_warning(view, decide_verdict(view, now, patience))
        verdict = decide_mpi(view, self._mpi.end, self._mpi.failed_daemon, now, patience)
        return verdict if self._mpi.needs_init is False else with_warning(view, verdict, NO_MPI_INIT)

    def _tick(self) -> None:
        now = time.monotonic()
        took, self._ticked = now - self._ticked, now
        self._record_status()
        # A gang of thousands changes all the time while it starts: looking at it must not take all the time.
        if (rest := _REST * (took - self._waited_s)) > _SHORT_S:
            time.sleep(min(rest, _TICK_S))
        self._gang.wait(_TICK_S)
        self._waited_s = time.monotonic() - now
        if self.telemetry is not None:
            self.telemetry.look(self._gang.view())

    def _record_status(self) -> None:
        snapshot = self._snapshot
        failure = snapshot.verdict.failure if snapshot.verdict else None
        elastic = snapshot.elastic() if snapshot.elastic else None
        registered = self._gang.registered
        if registered >= self._config.workers:
            self.events.once("Joined", f"all workers have registered: {registered}")
        self.events.see(snapshot.phase, elastic, failure.message if failure else "")
        if snapshot.first_progress is not None:
            self.events.once("Step", "the first step was reported", snapshot.first_progress)


class LauncherStopFlag:
    """Counts how often this process was asked to stop. `interrupted`: by SIGINT, which a person sends to a job;
    SIGTERM also comes to a pod that is taken away."""

    def __init__(self) -> None:
        self.count = 0
        self.interrupted = False

    def __call__(self, number: int = signal.SIGTERM, _: object = None) -> None:
        self.count += 1
        self.interrupted = self.interrupted or number == signal.SIGINT


def _hand_over_logs(config: LauncherConfig, snapshot: LauncherStatusSnapshot, unshipped: Unshipped | None) -> int:
    """Leave the ranks to the launcher that comes next: no order is given, and no outcome is written."""
    log.warning(
        "asked to stop, and the job goes on: its ranks train on, and wait for a new launcher at the next change "
        "of their world, for at most %g s",
        config.start_timeout_s,
    )
    verdict = Verdict(Outcome.STOPPED, 128 + signal.SIGTERM)
    write_termination_message(config.termination, _launcher_termination_message(config, snapshot, verdict, unshipped))
    return verdict.exit_code


def _open_store(config: LauncherConfig, files: AttemptFiles, logs_open: int) -> LogStore:
    try:
        return LogStore(files, config.job.uid, config.job.attempt, logs_open)
    except OSError as exc:
        if exc.errno not in _NO_PLACE:
            raise
        raise ConfigurationError(
            f"{contract.ENV_LOG_DIR}={str(config.log_root)!r}: logs cannot be kept there ({exc}); give user "
            f"{os.getuid()} a volume that it can write (securityContext.fsGroup) and that has room"
        ) from exc


def _ship_logs(config: LauncherConfig, store: LogStore, stop: LauncherStopFlag, stack: ExitStack) -> LogShipping | None:
    """Begin to copy the log store to the job's place in an object store, if it has one; an error ends it, too."""
    if not config.log_uri:
        return None
    shipping = LogShipping(config.log_uri, store.files, config.job.attempt, store.sizes)

    def on_exit(error: type[BaseException] | None, *_: object) -> None:
        if error is not None:
            shipping.finish(config.timeout_s, lambda: stop.count > 1)

    stack.push(on_exit)
    return shipping


def _prepare_mpi(config: LauncherConfig, command: Sequence[str], stack: ExitStack) -> MpirunJob | None:
    if config.mpi is None:
        return None
    job = MpirunJob(config, config.mpi, command)
    stack.callback(job.close, config.settle_s)
    return job


@contextmanager
def _hosts_followed(config: LauncherConfig, launcher: "_LauncherProcess", hosts: HostControl) -> Iterator[None]:
    """Within this, the world of an elastic run is where its discovery script says."""
    world = launcher.elastic
    if world is None or config.elastic is None or not config.elastic.discovery_script:
        yield
        return
    rules, cooldown = config.elastic.rules, hosts.agents.cooldown if hosts.agents else DEFAULT_COOLDOWN
    table = HostTable(config.workers, config.slots, rules.max_ranks, cooldown)
    if hosts.sites:
        launcher.sites.of_host = lambda worker: hosts.sites.get(table.host_of(worker), "")
    discovery = HostDiscovery(config.elastic.discovery_script, table, rules, world, hosts)
    try:
        yield
    finally:
        discovery.close()


def _open_ports(
    config: LauncherConfig,
    gang: LauncherGang,
    snapshot: LauncherStatusSnapshot,
    launcher: _LauncherProcess,
    stack: ExitStack,
) -> None:
    def hear_pods(events: list[dict[str, Any]], about: dict[str, str]) -> None:
        launcher.events.hear(events)
        if snapshot.about is not None:
            snapshot.about.tell(about)

    http = StatusServer(
        config.status_port,
        snapshot.status,
        snapshot.brief_status,
        launcher.healthy,
        everywhere=config.secrets.tls is not None,
        tokens=config.status_tokens,
        change_tokens=config.tokens,
        ask_workers=launcher.elastic.ask if launcher.elastic else None,
        hear_pods=hear_pods,
        hear_sites=launcher.sites.hear if config.site_label else None,
        is_held=config.ports_held,
        page=_launcher_page(config, snapshot),
    )
    stack.callback(http.close)
    if config.ports_held and config.tokens:  # a run of this machine: not in pods
        link = f"http://127.0.0.1:{http.port}/?token={page_token(config.tokens[0])}"
        keep_page(snapshot.store.files, link, None if config.elastic else config.world_size)
        stack.callback(snapshot.store.files.page.unlink, missing_ok=True)
    data = LauncherDataMembers(config, time.monotonic)
    snapshot.data = data.status if config.data_workers else None

    service = LauncherCoordinatorService(gang, snapshot.store, config.job.attempt, data)
    stack.callback(service.close)

    def register(server: Any) -> None:
        coordinator_pb2_grpc.add_CoordinatorServicer_to_server(service, server)
        coordinator_pb2_grpc.add_DataWorkersServicer_to_server(LauncherDataService(data), server)

    server = ControlAsyncServer.start(
        config.port,
        config.secrets,
        RpcPeer(contract.ROLE_WORKER, config.job.uid),
        clients=config.workers + config.data_workers,
        register=register,
        others={DATA_SERVICE: RpcPeer(contract.ROLE_DATA, config.job.uid)},
        is_held=config.ports_held,
    )
    stack.callback(server.close, 1.0)
    log.info("waiting for workers (%d) on port %d, status on port %d", config.workers, server.port, http.port)


def _launcher_page(config: LauncherConfig, snapshot: LauncherStatusSnapshot) -> LauncherPageServer | None:
    if not config.tokens:
        return None
    access = PageAccess(config.tokens, config.job.uid)
    return LauncherPageServer(
        access, LauncherRunPage(LauncherLivePage(snapshot).encoded, snapshot.store.files, config.timeline)
    )


def _stopped_launcher_verdict(view: GangView) -> Verdict:
    return Verdict(Outcome.STOPPED, 128 + signal.SIGTERM, view.succeeded)


def _gang_not_assembled(config: LauncherConfig, gang: LauncherGang) -> Verdict:
    here = gang.registrations()
    missing = [f"{config.job.name}-worker-{index}" for index in range(config.workers) if index not in here]
    noun = "worker" if config.workers == 1 else "workers"
    message = (
        f"{len(missing)} of {config.workers} {noun} did not register within {config.start_timeout_s:g} s: "
        f"{some_of(missing)}"
        if missing
        else f"the operator did not say within {config.start_timeout_s:g} s at which sites the workers are "
        f"(networking.sites: {config.site_label}); it needs the right to get nodes"
    )
    failure = Failure(Reason.NOT_ASSEMBLED, message)
    return Verdict(Outcome.FAILED, contract.EXIT_NOT_ASSEMBLED, failure=failure)


def _worker_without_site(config: LauncherConfig, gang: LauncherGang, worker: int) -> Verdict:
    agent = gang.registrations()[worker]
    message = (
        f"node {agent.node} of {agent.pod} has no label {config.site_label}, which names its site "
        "(networking.sites); label it, or keep workers away from it"
    )
    failure = Failure(Reason.BAD_CONFIGURATION, message, pod=agent.pod, node=agent.node)
    return Verdict(Outcome.FAILED, contract.EXIT_BAD_CONFIGURATION, failure=failure)


def _restarted_inside(view: GangView, worker: int) -> Verdict:
    lost = view.workers[worker]
    message = f"worker {worker} (pod {lost.pod}) was restarted while the others' ranks were running"
    failure = Failure(Reason.AGENT_LOST, message, worker * view.slots, lost.pod, lost.node)
    return Verdict(Outcome.FAILED, contract.EXIT_GANG_STOPPED, view.succeeded, failure)
