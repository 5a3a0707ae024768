"""The launcher's gang and log store behind its real service, in this process. The test gives the orders."""

import time
from pathlib import Path

from ringtrain.shared import contract
from ringtrain.shared.address import host_port
from ringtrain.shared.rpc import RpcPeer
from ringtrain_job.control.async_server import AsyncServer
from ringtrain_job.control.model import Form, Member, Order, RankPhase, RankState, World
from ringtrain_job.control.wire import COORDINATOR
from ringtrain_job.launcher.config import LauncherConfig
from ringtrain_job.launcher.gang import Gang
from ringtrain_job.launcher.service import CoordinatorService
from ringtrain_job.logs.layout import AttemptFiles
from ringtrain_job.logs.store import LogStore
from support.gang import GangProcesses, until


class ScriptedLauncher:
    """Serves on the control port of `job`. Close it and create another to simulate a restart of the launcher."""

    def __init__(self, job: GangProcesses) -> None:
        self.config = LauncherConfig.from_env(job.environment("launcher", "job-launcher"))
        identity = self.config.job
        self.gang = Gang(self.config, time.monotonic)
        files = AttemptFiles.of(Path(job.directory / "logs"), identity.namespace, identity.name, identity.attempt)
        self.store = LogStore(files, identity.uid, identity.attempt)
        self._service = service = CoordinatorService(self.gang, self.store, identity.attempt)
        self._server = AsyncServer.start(
            self.config.port,
            self.config.secrets,
            RpcPeer(contract.ROLE_WORKER, identity.uid),
            clients=16,
            services=[(COORDINATOR, service)],
        )

    def close(self) -> None:
        self._server.close(0)
        self._service.close()
        self.store.close()

    def give(self, order: Order) -> None:
        self.gang.give(order)

    def form(self, formation: int, members: list[tuple[int, int]], slots: tuple[int, ...]) -> None:
        """Order a formation with `members`: (slot, life), by rank."""
        count = self.config.slots
        agents = self.gang.registrations()
        places = [(agents[slot // count], slot % count) for slot, _ in members]
        first = places[0][0]
        world = World(
            attempt=first.attempt,
            ring_addresses=tuple(host_port(agent.address, agent.ring_ports[local]) for agent, local in places),
            tf_addresses=tuple(host_port(agent.address, agent.tf_ports[local]) for agent, local in places),
            master_address=first.address,
            master_port=first.master_port,
            formation=formation,
            members=tuple(Member(*member) for member in members),
        )
        self.give(Form(world, slots))

    def state(self, slot: int) -> RankState:
        """Return the state of a slot that its agent has reported."""
        return self.gang.view().ranks[slot]

    def until(self, slot: int, phase: RankPhase = RankPhase.RUNNING, **expected: object) -> RankState:
        """Wait until the state of `slot` is as expected."""

        def found() -> RankState | None:
            state = self.state(slot)
            same = all(getattr(state, name) == value for name, value in expected.items())
            return state if state.phase is phase and same else None

        return until(f"slot {slot} is {phase.value} with {expected}, and not {self.state(slot)}", found)

    def until_registered(self, *indices: int) -> None:
        until(f"agents {indices} registered", lambda: set(indices) <= set(self.gang.registrations()))
