"""`RankStarter` of MPI jobs: mpirun starts the ranks. In an elastic job each generation has a separate mpirun."""

import logging
from typing import Any

from ringtrain_job.agent.starters import StarterContext
from ringtrain_job.control.model import Form, Prepare, World
from ringtrain_mpi.agent.children import MpiAgentMainThread
from ringtrain_mpi.agent.worker import MPI_DAEMONS, MpiWorkerAgent
from ringtrain_mpi.settings import MpiAgentSettings

log = logging.getLogger(__name__)


class MpiRankStarter:
    """Starter that accepts the ranks that mpirun starts, as the launcher's orders Prepare and Form permit."""

    threads = MPI_DAEMONS

    def __init__(self, context: StarterContext) -> None:
        settings = MpiAgentSettings.from_env(context.environment)
        main = MpiAgentMainThread(context.post, context.config.timeout_s)
        self._ranks = context.ranks
        self._worker = MpiWorkerAgent(context.config, settings, context.ranks, main)
        self._order: Prepare | Form | None = None
        self.order = 0

    def register(self, server: Any) -> None:
        self._worker.register(server)

    def begin(self, world: World) -> None:
        self._worker.begin(world)

    def note_exit(self, pid: int, status: int) -> None:
        self._worker.children.note_exit(pid, status)

    def close(self) -> None:
        self._worker.close()

    def follow(self, order: Prepare | Form) -> None:
        """Store the launcher's newest `order`: refuse new ranks after Prepare; after Form, accept ranks again."""
        generation = order.formation if isinstance(order, Prepare) else order.world.formation
        log.info("generation %d %s", generation, "is being prepared" if isinstance(order, Prepare) else "begins")
        if isinstance(order, Prepare):
            self._worker.pause()
        else:
            self._worker.begin(order.world)
        self._order = order

    def act(self) -> None:
        """Stop ranks of earlier generations. The launcher's mpirun also stops them, but they may ignore its signal."""
        if self._order is None:
            return
        if isinstance(self._order, Prepare):
            self._ranks.stop_ranks(f"stopped for generation {self._order.formation}")
        # Set last: the state of ranks that is sent with this number must be newer than the order.
        self.order = self._order.number

    @property
    def running(self) -> bool:
        """Whether a daemon of mpirun is alive."""
        return self._worker.children.running
