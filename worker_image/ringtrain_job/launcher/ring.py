"""Backend of a job with a fixed world: wait for all agents, start all ranks, end with the ranks."""

import logging
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ringtrain.errors import counted, some_of
from ringtrain.shared import contract
from ringtrain_job.control.model import Failure, Outcome, Reason, Registration, Start, Stop, Verdict
from ringtrain_job.launcher.backend import HandOver, RequestWorkers
from ringtrain_job.launcher.members import make_world
from ringtrain_job.launcher.registry import BackendContext
from ringtrain_job.launcher.verdict import GangView, VerdictPatience, decide_verdict, with_warning

log = logging.getLogger(__name__)


class RingBackend:
    """Backend of a fixed world: waits for all agents, orders them to start their ranks, and watches the ranks."""

    request_workers: RequestWorkers | None = None

    def __init__(self, context: BackendContext) -> None:
        self._config, self._gang, self._sites = context.config, context.gang, context.sites
        self._status = context.status
        self._began = time.monotonic()
        self._is_running = False
        self._patience = VerdictPatience(self._config.lost_after_s, self._config.settle_s)

    @property
    def ranks(self) -> int:
        return self._config.world_size

    def begin(self) -> None:
        self._began = time.monotonic()

    def tick(self) -> Verdict | None:
        if self._is_running:
            return self.decide(self._gang.view(), time.monotonic(), self._patience)
        if self._gang.registered < self._config.workers or self._awaits_sites:
            return self._late_verdict()
        verdict = self._refusal_verdict()
        if verdict is None:
            self._start()
        return verdict

    def handle_stop_request(self, *, by_person: bool) -> Verdict | HandOver | None:
        return Verdict(Outcome.STOPPED, 128 + signal.SIGTERM, self._gang.view().succeeded)

    def stop(self, verdict: Verdict) -> None:
        self._gang.give(Stop(verdict))

    def is_quiet(self) -> bool:
        return self._gang.all_drained()

    def close(self) -> None:
        """Do nothing, because agents end their ranks."""

    def status(self) -> Mapping[str, Any]:
        return {}

    def decide(self, view: GangView, now: float, patience: VerdictPatience) -> Verdict | None:
        """Return the verdict on the attempt; None while it is undecided."""
        return with_warning(view, decide_verdict(view, now, patience))

    def in_rank_order(self, workers: Sequence[Registration]) -> list[Registration]:
        """Return the registrations `workers`, which are in order of index, in rank order."""
        return list(workers)

    def started(self, members: Sequence[Registration]) -> None:
        """Hook for subclasses: called after agents have received the order to start. `members`: in rank order."""

    def refusal_of_running_ranks(self, view: GangView) -> Verdict | None:
        """Return a failed verdict if an earlier launcher started the ranks and they cannot continue; otherwise None."""
        fresh = self._gang.fresh_workers()
        return _restart_verdict(view, fresh[0]) if fresh else None

    def _start(self) -> None:
        registrations = self._gang.registrations()
        members = self.in_rank_order([registrations[index] for index in sorted(registrations)])
        self._gang.give(Start(make_world(members, self._sites.by_index)))
        self._status.running_since = time.time()
        self._is_running = True
        log.info("all workers have registered; ranks: %d", self._config.world_size)
        self.started(members)

    def _late_verdict(self) -> Verdict | None:
        # After a restart of the launcher, agents with running ranks reconnect at once or never.
        patience = self._config.timeout_s if self._gang.any_rank_started() else self._config.start_timeout_s
        if time.monotonic() - self._began < min(patience, self._config.start_timeout_s):
            return None
        return self._not_assembled_verdict()

    def _refusal_verdict(self) -> Verdict | None:
        if homeless := [index for index, site in sorted(self._sites.by_index.items()) if not site]:
            return self._no_site_verdict(homeless[0])
        return self.refusal_of_running_ranks(self._gang.view()) if self._gang.any_rank_started() else None

    @property
    def _awaits_sites(self) -> bool:
        return bool(self._config.site_label) and len(self._sites.by_index) < self._config.workers

    def _not_assembled_verdict(self) -> Verdict:
        config, here = self._config, self._gang.registrations()
        missing = [f"{config.job.name}-worker-{index}" for index in range(config.workers) if index not in here]
        message = (
            f"{len(missing)} of {counted(config.workers, 'worker')} did not register within "
            f"{config.start_timeout_s:g} s: {some_of(missing)}"
            if missing
            else f"the operator did not report the workers' sites within {config.start_timeout_s:g} s "
            f"(networking.sites: {config.site_label}); it needs the permission to get nodes"
        )
        failure = Failure(Reason.NOT_ASSEMBLED, message)
        return Verdict(Outcome.FAILED, contract.EXIT_NOT_ASSEMBLED, failure=failure)

    def _no_site_verdict(self, worker: int) -> Verdict:
        agent = self._gang.registrations()[worker]
        message = (
            f"node {agent.node} of {agent.pod} has no label {self._config.site_label}, which names its site "
            "(networking.sites); label it, or exclude it from scheduling"
        )
        failure = Failure(Reason.BAD_CONFIGURATION, message, pod=agent.pod, node=agent.node)
        return Verdict(Outcome.FAILED, contract.EXIT_BAD_CONFIGURATION, failure=failure)


def open_ring(context: BackendContext) -> RingBackend | None:
    """Return the backend of a job whose world is fixed and whose agents start the ranks; None for any other job."""
    return RingBackend(context) if context.config.agents_start_ranks else None


def _restart_verdict(view: GangView, worker: int) -> Verdict:
    lost = view.workers[worker]
    message = f"worker {worker} (pod {lost.pod}) was restarted while the others' ranks were running"
    failure = Failure(Reason.AGENT_LOST, message, worker * view.slots, lost.pod, lost.node)
    return Verdict(Outcome.FAILED, contract.EXIT_GANG_STOPPED, view.succeeded, failure)
