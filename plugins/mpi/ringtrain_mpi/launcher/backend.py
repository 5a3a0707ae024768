"""Launcher backends of MPI jobs: one mpirun for a fixed world, or one for each generation of an elastic world."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from ringtrain.errors import ConfigurationError
from ringtrain.shared import contract
from ringtrain_job.control.model import Failure, Outcome, RankPhase, RankState, Reason, Registration, Verdict
from ringtrain_job.launcher.backend import Backend
from ringtrain_job.launcher.config import LauncherConfig
from ringtrain_job.launcher.elastic import ElasticBackend
from ringtrain_job.launcher.generation import Formed
from ringtrain_job.launcher.generation_state import GenerationPhase
from ringtrain_job.launcher.members import WorldView
from ringtrain_job.launcher.registry import BackendContext
from ringtrain_job.launcher.ring import RingBackend
from ringtrain_job.launcher.verdict import GangView, VerdictPatience, with_warning
from ringtrain_mpi.launcher.job import MpirunJob
from ringtrain_mpi.launcher.verdict import NO_MPI_INIT, decide_mpi
from ringtrain_mpi.settings import MpiSettings


class _StopsMpirun:
    """Mixin that stops mpirun together with its ranks. Ranks that may save a checkpoint are stopped first."""

    _config: LauncherConfig
    _mpirun: MpirunJob
    _stops_late = False

    def stop(self, verdict: Verdict) -> None:
        self._stops_late = _may_save(verdict)
        if not self._stops_late:
            self._mpirun.stop()
        _backend(super()).stop(verdict)

    def is_quiet(self) -> bool:
        is_drained = _backend(super()).is_quiet()
        if is_drained and self._stops_late:
            self._stops_late = False
            self._mpirun.stop()
        return is_drained and not self._mpirun.running

    def close(self) -> None:
        _backend(super()).close()
        self._mpirun.close(self._config.settle_s)


class MpiBackend(_StopsMpirun, RingBackend):
    """Backend of a fixed world: runs the launcher's command (mpirun) once all agents have registered."""

    def __init__(self, context: BackendContext, settings: MpiSettings) -> None:
        super().__init__(context)
        self._mpirun = MpirunJob(context.config, settings, context.command)
        self._launcher_is_worker = settings.launcher_as_worker
        self._gang.ranks_move = True

    def in_rank_order(self, workers: Sequence[Registration]) -> list[Registration]:
        """Return workers in rank order. A launcher that runs ranks is the last worker but has the first ranks."""
        return [workers[-1], *workers[:-1]] if self._launcher_is_worker else list(workers)

    def started(self, members: Sequence[Registration]) -> None:
        self._mpirun.start(members)

    def refusal_of_running_ranks(self, view: GangView) -> Verdict | None:
        message = "the launcher was restarted while ranks were running, so their mpirun has ended"
        failure = Failure(Reason.LAUNCHER_FAILED, message)
        return Verdict(Outcome.FAILED, contract.EXIT_GANG_STOPPED, view.succeeded, failure)

    def decide(self, view: GangView, now: float, patience: VerdictPatience) -> Verdict | None:
        verdict = decide_mpi(view, self._mpirun.end, self._mpirun.failed_daemon, now, patience)
        return verdict if self._mpirun.needs_init is False else with_warning(view, verdict, NO_MPI_INIT)


class MpiElasticBackend(_StopsMpirun, ElasticBackend):
    """Backend of an elastic world: runs a new mpirun for each generation."""

    def __init__(self, context: BackendContext, settings: MpiSettings) -> None:
        self._mpirun = MpirunJob(context.config, settings, context.command)
        context.gang.ranks_move = True
        super().__init__(context)

    def may_end(self) -> bool:
        """Return whether the launcher's command exited with 0. If the command is a script, it may start another mpirun
        before it exits."""
        return self._mpirun.end is not None and self._mpirun.end.code == 0

    def before_preparing(self) -> None:
        self._mpirun.halt(self._config.settle_s)

    def after_forming(self, order: Formed) -> None:
        registrations = self._gang.registrations()
        slots = Counter(process.slot // self._config.slots for process in order.members)
        self._mpirun.start([registrations[worker] for worker in slots], slots)

    def failure_of_starter(self, view: WorldView, gang: GangView, now: float) -> Verdict | None:
        """Return a failure if mpirun ended although no rank or agent was lost; None otherwise."""
        if self._mpirun.end is None or self._state.phase is not GenerationPhase.RUNNING:
            return None
        slots = [process.slot for process in self._state.members]
        if any(view.slots[slot].silent for slot in slots):
            return None  # its agent reconnects or is lost: then another generation follows
        # An agent's report about the ends of its ranks may arrive later than mpirun's.
        if now - self._mpirun.end.at < 2 * self._config.settle_s:
            return None
        exits = [exit for exit in gang.exits if exit.state.life == view.slots[exit.state.rank].state.life]
        waiting = [RankState(slot, RankPhase.WAITING) for slot in slots]
        lives = {process.slot: process.life for process in self._state.members}
        ranks = [
            view.slots[slot].state if view.slots[slot].state.life == lives[slot] else absent
            for slot, absent in zip(slots, waiting, strict=True)
        ]
        seen = replace(gang, ranks=ranks, exits=[exit for exit in exits if exit.state in ranks], members=slots)
        patience = VerdictPatience(self._config.lost_after_s, self._config.settle_s)
        verdict = decide_mpi(seen, self._mpirun.end, self._mpirun.failed_daemon, now, patience)
        return None if verdict is None or verdict.failure is None else verdict


def open_mpi(context: BackendContext) -> MpiBackend | MpiElasticBackend | None:
    """Return the backend of an MPI job; None if `spec.backend` is not mpi. Raises ConfigurationError if a setting is
    invalid."""
    if context.config.backend != "mpi":
        return None
    settings = MpiSettings.from_env(os.environ)
    elastic = context.config.elastic
    if elastic is None:
        return MpiBackend(context, settings)
    rules = elastic.rules
    if settings.launcher_as_worker or not rules.restarts:
        on_loss = "Restart" if rules.restarts else "Shrink" if rules.shrinks else "Replace"
        raise ConfigurationError(
            f"{contract.ENV_ELASTIC}={on_loss} and {contract.ENV_MPI_LAUNCHER_AS_WORKER}="
            f"{int(settings.launcher_as_worker)} in an elastic mpi job; expected Restart and 0, because an MPI world "
            "cannot change while its processes run"
        )
    return MpiElasticBackend(context, settings)


def _backend(of_super: Any) -> Backend:
    return cast("Backend", of_super)


def _may_save(verdict: Verdict) -> bool:
    """Return whether ranks may save before they end. Then agents stop them first: mpirun kills ranks after a second."""
    return verdict.failure is None or verdict.failure.reason is Reason.AGENT_LOST
