"""Resources of an agent."""

import json
import logging
import os
import queue
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ringtrain.shared import contract
from ringtrain.shared.address import own_address
from ringtrain.shared.data_members import DataMembersFile
from ringtrain.shared.masking import shown_command
from ringtrain.shared.ports import HeldPorts
from ringtrain.shared.processes import RankProcess
from ringtrain.shared.rpc import RpcPeer, dial, serve, stub_of
from ringtrain_job.agent.collector import RankOutputCollector
from ringtrain_job.agent.commit import agent_commit_of
from ringtrain_job.agent.config import AgentConfig
from ringtrain_job.agent.contact import WorldContact
from ringtrain_job.agent.coordinator import CoordinatorClient, Event
from ringtrain_job.agent.elastic.slots import ElasticSlots, RankProgram
from ringtrain_job.agent.machine import MachineSampler, MachineThread
from ringtrain_job.agent.rank_env import rank_environment, usable_cores
from ringtrain_job.agent.ranks import AgentRanks
from ringtrain_job.agent.shipper import LogShipper, LogShipperEvents
from ringtrain_job.agent.spool import LogSpool
from ringtrain_job.agent.starters import RankStarter, StarterContext, open_starter
from ringtrain_job.agent.world_file import WorldFiles
from ringtrain_job.control.model import (
    ENDED,
    AgentState,
    Form,
    Prepare,
    RankPhase,
    RankState,
    Registration,
    SlotHistory,
    World,
)
from ringtrain_job.control.wire import COORDINATOR
from ringtrain_job.logs.journal import LogStream
from ringtrain_job.logs.printed import PrintedReports
from ringtrain_job.logs.samples import MachineSample
from ringtrain_job.logs.store import LogChunk

log = logging.getLogger(__name__)


class AgentPod:
    """All parts of a worker's agent: ranks, log queue, threads, and the connection to the launcher."""

    def __init__(
        self, config: AgentConfig, program: RankProgram, events: "queue.SimpleQueue[Event]", stack: ExitStack
    ) -> None:
        self._config = config
        self._program = program
        self._instance = uuid.uuid4().hex
        self._collectors: dict[int, RankOutputCollector] = {}
        self._spool = LogSpool()
        self._printed = PrintedReports(config.metrics_rule, config.world_size, elastic=config.elastic)
        self.ranks = AgentRanks(config.first_rank, config.slots if config.agents_start_ranks else 0)
        machine = MachineSampler(config.index, self.ranks.pids)
        self.ranks.end_cause = machine.end_cause
        self._machine = MachineThread(machine, self._report_machine)
        stack.callback(self._machine.close)
        self._world_files = WorldFiles(stack)
        self.leaving = ""
        self.stopping = False
        self.saving = False
        self._starter = open_starter(StarterContext(config, program.inherited, self, events.put))
        if self._starter is not None:
            stack.callback(self._starter.close)
        self._contact: WorldContact | None = None
        self.post: Callable[[Event], None] = events.put  # to the main thread
        has_slots = config.elastic and self._starter is None
        self._slots = ElasticSlots(config, program, self.ranks, self) if has_slots else None
        if self._slots is not None:
            stack.callback(self._slots.close)
        self._held = HeldPorts()
        stack.callback(self._held.release)
        ports = config.ports
        self._ring_ports = self._held.take(ports.ring_base, config.slots)
        self._tf_ports = self._held.take(ports.tf_base, config.slots)
        # In an elastic job any worker may get the first rank.
        leads = config.elastic or config.position == 0
        self._master_port = self._held.take(ports.master, 1)[0] if leads else 0
        self._agent_port = self._serve(self._starter, stack) if self._starter else 0
        launcher = RpcPeer(contract.ROLE_LAUNCHER, config.job.uid)
        channel = dial(config.launcher_address, config.secrets, launcher, config.workers)
        stub = stub_of(channel, COORDINATOR)
        self.coordinator = CoordinatorClient(
            stub,
            config,
            self._instance,
            self._registration,
            self.state,
            events.put,
            self._acknowledged,
            DataMembersFile(config.data_file) if config.data_file else None,
        )
        header = {"attempt": config.job.attempt, "worker_index": config.index, "instance": self._instance}
        heard = LogShipperEvents(on_contact=self.coordinator.record_answer, on_empty=self.coordinator.changed)
        self._shipper = LogShipper(stub, self._spool, header, config.call_s, heard)
        for last_to_first in (self.coordinator.join, self._shipper.join, channel.close):
            stack.callback(last_to_first)
        stack.callback(self._shipper.close)
        stack.callback(self.coordinator.close)
        log.info("worker %d connects to the launcher at %s", config.index, config.launcher_address)
        self._shipper.start()
        if config.index == 0:
            self._report({"about": _describe_rank_command(program.command)})
        self._machine.start()
        self.coordinator.start()

    def start_ranks(self, world: World) -> None:
        """Start all ranks of this worker in `world`."""
        self._held.release()
        _make_agent_directory(self._config.checkpoint_dir)
        if self._starter is not None:
            self._starter.begin(world)
            return
        self._contact = WorldContact(world)
        cores = usable_cores()
        processes = self.ranks.start(
            self._program.command,
            lambda local: self.fitted(
                rank_environment(self._config, world, local, self._program.inherited, cores), world
            ),
        )
        self._collect(processes)
        for rank, line in self.ranks.not_started():
            self.write_line(rank, line)
        self.coordinator.changed()

    def fitted(self, variables: Mapping[str, str], world: World) -> dict[str, str]:
        """Return `variables`, with values that are too long for the environment moved to a file."""
        return self._world_files.fitted(variables, world)

    def continue_from(self, histories: tuple[SlotHistory, ...]) -> None:
        """In an elastic job, continue the numbers of processes and log records of an earlier agent of this worker."""
        for history in histories if self._config.elastic else ():
            if self._slots is not None:
                self.ranks.number_from(history.slot, history.life)
            self._spool.continue_from(LogStream.LOG, history.slot, history.log_records)
            self._spool.continue_from(LogStream.REPORT, history.slot, history.report_records)

    def follow(self, order: Prepare | Form) -> None:
        """Store the newest `order` of an elastic job; `act` executes it."""
        if self._starter is not None:
            self._held.release()
            _make_agent_directory(self._config.checkpoint_dir)
            self._starter.follow(order)
        elif self._slots is not None:
            self._slots.follow(order)
        else:
            log.error("ignored the launcher's order for an elastic job: this agent's job is not elastic")

    def act(self) -> None:
        """Execute the due actions of an elastic job's order. In other jobs, check whether ranks have connected."""
        if self._slots is not None:
            self._slots.act(starting=not (self.leaving or self.stopping))
        elif self._starter is not None:
            self._starter.act()
        elif self._contact is not None and self._contact.is_due():
            self._look_for_contact(self._contact)

    def prepare_start(self, slot: int) -> None:
        """Release the ports reserved for `slot`, whose process is about to start, and create the job's folder."""
        local_rank = slot - self._config.first_rank
        self._held.release({self._ring_ports[local_rank], self._tf_ports[local_rank], self._master_port})
        _make_agent_directory(self._config.checkpoint_dir)

    def write_line(self, slot: int, line: str) -> None:
        """Add `line` to the slot's log."""
        self._spool.put(LogStream.LOG, slot, f"{line}\n".encode(errors="replace"))

    def _report_machine(self, sample: MachineSample) -> None:
        self._report({"machine": sample.document()})

    def _report(self, what: dict[str, Any]) -> None:
        """Queue a report of this worker's first rank with the fields `what`. The report is dropped if the queue is
        full."""
        report = {"step": 0, "time": time.time(), **what}
        self._spool.offer(LogStream.REPORT, self._config.first_rank, f"{json.dumps(report)}\n".encode())

    def changed(self) -> None:
        """Send the states of ranks to the launcher now."""
        self.coordinator.changed()

    def _acknowledged(self, state: AgentState) -> None:
        if self._slots is not None and any(rank.phase in ENDED for rank in state.ranks):
            self.ranks.note_reported(state.ranks)
            self.post(lambda: None)  # wakes the main thread, which evaluates its slots

    def collect(self, process: RankProcess) -> None:
        """Begin to collect the output of a process that the agent or a plugin's program starts."""
        self._collect([process])

    def rank_started(self, process: RankProcess, life: int, generation: int) -> None:
        """Record that a plugin's program has started a rank.

        `life`, `generation`: in an elastic job, the number of the process in its slot, and the generation that it
        joins.
        """
        self.ranks.adopt(process, life, generation)
        self.coordinator.changed()

    def ranks_joined(self) -> None:
        """Record that all ranks have joined the world. Called when a rank has reported that."""
        self.ranks.note_joined()

    def stop_ranks(self, reason: str, ranks: Collection[int] | None = None) -> None:
        """Stop `ranks` (None: all), because the plugin's program that starts them has requested it. `reason`: text for
        their states."""
        self.ranks.stop(self._config.grace_s, reason, ranks)

    def rank_ended(self, rank: int, code: int, problem: RankState | None) -> None:
        """Record that a rank which a plugin's program started has ended with `code`, negative for a signal.

        `problem`: state to report although `code` is 0.
        """
        if self.ranks.note_exit(rank, code, problem):
            self._conclude_rank(rank)

    def reap(self) -> None:
        """Reap ended processes, and take the next step for each rank that is being stopped. When no rank is left, kill
        all descendants."""
        # Before the launcher can learn that all ranks have ended.
        if self._contact is not None and not self._contact.found:
            self._look_for_contact(self._contact)
        for rank in self.ranks.reap(self._starter.note_exit if self._starter else lambda *_: None):
            self._conclude_rank(rank)
        if self.ranks.all_ended and not (self._starter and self._starter.running):
            self.ranks.sweep()

    def _conclude_rank(self, rank: int) -> None:
        if rank in self._collectors:
            self._collectors[rank].rank_ended(rank)
        if self._slots is not None:
            self._slots.ended(rank)
        self.coordinator.changed()

    def _look_for_contact(self, contact: WorldContact) -> None:
        if contact.check():
            self.ranks.note_joined()

    def _joined(self) -> None:
        if self._contact is not None:
            self._contact.found = True
            self.ranks.note_joined()

    def _collect(self, processes: Sequence[RankProcess]) -> None:
        collector = RankOutputCollector(
            self._spool, processes, lambda _: self.coordinator.changed(), self._joined, self._printed
        )
        self._collectors.update((process.rank, collector) for process in processes)
        collector.start()

    def drained(self) -> bool:
        """Return whether the attempt is ending, no rank is running, and the launcher has stored all output."""
        return (
            (self.stopping or bool(self.leaving))
            and self.ranks.all_ended
            and self._spool.empty
            and all(state.phase is not RankPhase.RUNNING for state in self._states())
        )

    def unshipped(self) -> Iterable[LogChunk]:
        """Return the log chunks that the launcher has not stored, and stop sending."""
        if self._spool.empty:
            return ()
        self._shipper.stop()
        return self._spool.rest()

    def state(self) -> AgentState:
        """Return the state of this worker for the next heartbeat."""
        follower = self._slots or self._starter
        order = follower.order if follower is not None else 0
        drained = self.drained()  # first, like the order: the states collected below are newer
        shown = self.ranks.started or self._config.elastic
        return AgentState(self._states() if shown else (), drained, self.leaving, order)

    def _states(self) -> tuple[RankState, ...]:
        collectors = dict(self._collectors)
        return self.ranks.states(
            lambda rank: rank not in collectors or collectors[rank].complete(rank),
            lambda rank: collectors[rank].tail(rank) if rank in collectors else (),
        )

    def _registration(self) -> Registration:
        config = self._config
        return Registration(
            job_uid=config.job.uid,
            attempt=config.job.attempt,
            worker_index=config.index,
            slots=config.slots,
            instance=self._instance,
            pod=config.pod,
            node=config.node,
            address=config.pod_ip or own_address(config.launcher_address),
            agent_port=self._agent_port,
            ring_ports=self._ring_ports,
            tf_ports=self._tf_ports,
            master_port=self._master_port,
            ranks=self.state().ranks if self.ranks.started else (),
            incarnation=config.incarnation,
            pod_uid=config.pod_uid,
        )

    def _serve(self, starter: RankStarter, stack: ExitStack) -> int:
        server = serve(
            self._config.ports.agent,
            self._config.secrets,
            RpcPeer(contract.ROLE_LAUNCHER, self._config.job.uid),
            threads=4 + starter.threads,
            register=starter.register,
        )
        stack.callback(server.close, 0.5)
        return server.port


def _describe_rank_command(command: Sequence[str]) -> dict[str, Any]:
    """Return the ranks' command, working directory and git commit, for the run's description."""
    told = {"command": list(shown_command(command)), "directory": os.getcwd(), "commit": agent_commit_of(Path.cwd())}
    return {name: value for name, value in told.items() if value}


def _make_agent_directory(path: str) -> None:
    """Create the job's folder on its volume claim, for programs that write there without ringtrain."""
    try:
        if path:
            Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as exc:  # ranks fail later if they write there
        log.warning("cannot create the folder that %s names, %s: %s", contract.ENV_CHECKPOINT_DIR, path, exc)
