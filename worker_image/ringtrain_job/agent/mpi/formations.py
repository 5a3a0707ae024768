"""The formations of an elastic MPI job at its agent: each has its own mpirun, and no rank outlives it."""

import logging

from ringtrain_job.agent.config import AgentConfig
from ringtrain_job.agent.mpi.worker import MpiWorkerAgent
from ringtrain_job.agent.ranks import AgentRanks
from ringtrain_job.control.model import Form, Prepare

log = logging.getLogger(__name__)


class MpiAgentFormations:
    """Follows the launcher's `Prepare` and `Form` where mpirun starts the ranks. Used in the main thread."""

    def __init__(self, config: AgentConfig, ranks: AgentRanks, mpi: MpiWorkerAgent) -> None:
        self._config, self._ranks, self._mpi = config, ranks, mpi
        self._order: Prepare | Form | None = None
        self.order = 0

    def follow(self, order: Prepare | Form) -> None:
        """Make `order`, the newest, come true, from now on."""
        formation = order.formation if isinstance(order, Prepare) else order.world.formation
        log.info("formation %d %s", formation, "is being prepared" if isinstance(order, Prepare) else "begins")
        if isinstance(order, Prepare):
            self._mpi.pause()
        else:
            self._mpi.begin(order.world)
        self._order = order

    def act(self) -> None:
        """End ranks of an earlier formation: the launcher's mpirun ends them too, unless they do not listen."""
        if self._order is None:
            return
        if isinstance(self._order, Prepare):
            self._ranks.stop(self._config.grace_s, f"stopped for formation {self._order.formation}")
        # Only now: what is said of ranks together with this number must be younger than the order.
        self.order = self._order.number
