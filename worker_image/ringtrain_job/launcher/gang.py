"""States of all agents of an attempt, and the newest order for them. Protected by one lock; does no I/O."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ringtrain_job.control.model import (
    ENDED,
    AgentState,
    Form,
    Order,
    RankPhase,
    RankState,
    Refusal,
    Registration,
    World,
)
from ringtrain_job.launcher.agents import (
    RankViews,
    RegisteredAgent,
    exit_key,
    registration_mismatch,
    relevant_state,
    state_supersedes,
    waiting_rank_state,
)
from ringtrain_job.launcher.config import LauncherConfig
from ringtrain_job.launcher.members import MemberProcess, SlotView, make_generation_world
from ringtrain_job.launcher.verdict import GangView, RankExit, WorkerView


class Gang:
    """All agents of the attempt, with the newest order for them. Thread-safe; `clock` is monotonic, in seconds.

    Methods name an agent by its worker `index` and by `instance`, the id of its process.
    """

    def __init__(self, config: LauncherConfig, clock: Callable[[], float]) -> None:
        self._config = config
        self._clock = clock
        # Heartbeat interval for agents, 0: their default; and limits that every evaluation reads for every agent.
        self.heartbeat_s = config.heartbeat_s
        self._silence_s, self._lost_after_s = config.silence_s, config.lost_after_s
        self._changed = threading.Condition()
        self._agents: dict[int, RegisteredAgent] = {}
        # Start of the wait for missing agents: before the first registration, this host's name may not resolve yet.
        self._expected_since = clock() + max(0.0, config.start_timeout_s - config.lost_after_s)
        # Time of the last registration or order stream.
        self._arrived = clock()
        # Set by a backend in which agents may be replaced while ranks run: seconds that a new one waits for its place.
        self.vacancy_s = 0.0
        # Whether a rank may run on another worker than the rank order implies.
        self.ranks_move = False
        # Counter of changes that require an evaluation. Silence of an agent does not increase it.
        self.changes = 0
        # Order for every agent. `on_order` is called after each change, on the thread that changed it.
        self.order: Order | None = None
        self.on_order: Callable[[], None] = lambda: None
        self._lives: dict[int, int] = {}
        # Cached result of `view`, and the workers whose ranks have changed since.
        self._seen = RankViews.of(config.world_size)
        # Worker on which each rank was seen last, if ranks move.
        self._placed: dict[int, int] = {}
        self._new: set[int] = set()
        self._lost_incarnations: dict[int, int] = {}

    def register(self, registration: Registration) -> Refusal | None:
        """Register an agent, possibly again; return the reason if it is refused, otherwise None."""
        with self._changed:
            refusal = (
                registration_mismatch(self._config, registration)
                or self._ended(registration)
                or self._duplicate(registration)
            )
            if refusal is not None:
                self._notify()
                return refusal
            index = registration.worker_index
            agent = self._agents.get(index)
            if not self._agents:
                self._expected_since = self._clock()
            if agent is None or agent.registration.instance != registration.instance:
                agent = self._agents[index] = RegisteredAgent(
                    registration, self._clock(), not_for_it=self._order_for(index)
                )
            agent.order, agent.attached = registration.order, False
            self._arrived = self._clock()
            self._record_ranks(agent, registration.ranks)
            self._notify()
            return None

    def is_vacant(self, registration: Registration) -> bool:
        """Return whether no other agent occupies the same worker. The loss of an agent may be noticed late."""
        with self._changed:
            return self._duplicate(registration) is None

    def is_replaced(self, index: int, instance: str) -> bool:
        """Return whether a newer agent has replaced the agent `instance` of worker `index`."""
        with self._changed:
            agent = self._agents.get(index)
            return agent is not None and agent.registration.instance != instance

    def sync(self, index: int, instance: str, state: AgentState) -> bool:
        """Record the state that an agent has sent; return False if the agent is not registered."""
        with self._changed:
            agent = self._agent(index, instance)
            if agent is None:
                return False
            before = relevant_state(agent)
            self._record_ranks(agent, state.ranks)
            agent.order, agent.drained = state.order, state.drained
            if state.leaving and not agent.leaving:
                agent.leaving, agent.leaving_since = state.leaving, self._clock()
            if before != relevant_state(agent):  # most calls are heartbeats without news
                self._notify()
            return True

    def record_heartbeat(self, index: int, instance: str) -> bool:
        """Record a heartbeat without changes; return False if the agent is not registered."""
        with self._changed:
            return self._agent(index, instance) is not None

    def attach(self, index: int, instance: str) -> bool:
        """Record that an agent has opened its stream of orders; return False if the agent is not registered."""
        return self._count_stream(index, instance, 1)

    def order_for_another(self, index: int) -> Order | None:
        """Return the order that the agent of worker `index` must skip because it was meant for its lost predecessor.

        Return None if there is no such order.
        """
        with self._changed:
            agent = self._agents.get(index)
            return agent.not_for_it if agent else None

    def detach(self, index: int, instance: str) -> None:
        """Record that an agent's stream of orders was closed."""
        self._count_stream(index, instance, -1)

    def give(self, order: Order) -> None:
        """Set the newest order, which goes to all agents."""
        with self._changed:
            self.order = order
            self._notify()
        self.on_order()

    def notice(self) -> None:
        """Wake threads in `wait`, after a change outside this object."""
        with self._changed:
            self._notify()

    def mark_workers_lost(self, gone: Mapping[int, int]) -> None:
        """Mark agents as lost because the operator knows that their pods have ended. `gone`: number of the newest ended
        pod, by worker."""
        with self._changed:
            before = dict(self._lost_incarnations)
            for index, incarnation in gone.items():
                self._lost_incarnations[index] = max(incarnation, self._lost_incarnations.get(index, 0))
            if self._lost_incarnations != before:
                self._notify()

    def lost_workers(self) -> frozenset[int]:
        """Return the registered workers that have been silent so long that they count as lost."""
        with self._changed:
            now = self._clock()
            return frozenset(index for index, agent in self._agents.items() if self._is_quiet(agent, now))

    def wait(self, timeout_s: float) -> None:
        """Wait until something changes, at most `timeout_s`."""
        with self._changed:
            self._changed.wait(timeout_s)

    def registrations(self) -> dict[int, Registration]:
        """Return the registrations by worker index."""
        with self._changed:
            return {index: agent.registration for index, agent in sorted(self._agents.items())}

    @property
    def registered(self) -> int:
        """Number of registered agents."""
        return len(self._agents)

    def any_rank_started(self) -> bool:
        """Return whether any agent has started ranks. Before the first order, only an earlier launcher can have ordered
        that."""
        with self._changed:
            return any(agent.states for agent in self._agents.values())

    def life(self, slot: int) -> int:
        """Return the number of the newest process in a slot, as reported by any agent; 0 if none."""
        with self._changed:
            return self._lives.get(slot, 0)

    def fresh_workers(self) -> list[int]:
        """Return the registered workers that have not started any ranks."""
        with self._changed:
            return sorted(index for index, agent in self._agents.items() if not agent.states)

    def attached_workers(self) -> frozenset[int]:
        """Return the workers whose agents have an open stream of orders."""
        with self._changed:
            return frozenset(index for index, agent in self._agents.items() if agent.streams)

    def all_drained(self) -> bool:
        """Return whether all agents, except lost ones, have sent all output and have no running ranks."""
        with self._changed:
            now = self._clock()
            return all(agent.drained for agent in self._agents.values() if not self._is_quiet(agent, now))

    def all_leaving(self) -> bool:
        """Return whether all agents, except lost ones, have received SIGTERM, for example from the kubelet."""
        with self._changed:
            now = self._clock()
            return all(agent.leaving for agent in self._agents.values() if not self._is_quiet(agent, now))

    def all_detached(self) -> bool:
        """Return whether no agent has an open stream of orders."""
        with self._changed:
            return not any(agent.streams for agent in self._agents.values())

    def slots(self) -> dict[int, SlotView]:
        """Return the current state of all slots, including those of workers without an agent."""
        with self._changed:
            now = self._clock()
            found: dict[int, SlotView] = {}
            for worker in range(self._config.workers):
                found.update(self._slot_views(worker, now))
            return found

    def world_of(
        self, generation: int, members: Sequence[MemberProcess], sites: Mapping[int, str] | None = None
    ) -> World:
        """Return the world of `generation`. `members`: in rank order. `sites`: site names by worker."""
        with self._changed:
            return make_generation_world(
                generation, members, {index: agent.registration for index, agent in self._agents.items()}, sites
            )

    def view(self) -> GangView:
        """Return the states that all workers and ranks have now."""
        with self._changed:
            now = self._clock()
            workers = [self._worker_view(index, now) for index in range(self._config.workers)]
            if self._new:
                self._seen = self._look() if self.ranks_move else self._look_again()
                self._new.clear()
            seen = self._seen
            return GangView(self._config.slots, workers, seen.ranks, seen.exits, seen.placed)

    def _look(self) -> "RankViews":
        """Return the states of all ranks, which may run on any worker."""
        ranks = []
        for rank in range(self._config.world_size):
            agent = self._agents.get(self._placed.get(rank, rank // self._config.slots))
            ranks.append(agent.states.get(rank, waiting_rank_state(rank)) if agent else waiting_rank_state(rank))
        exits = tuple(exit for agent in self._agents.values() for exit in agent.exits.values())
        return RankViews(tuple(ranks), exits, dict(self._placed))

    def _look_again(self) -> "RankViews":
        """Return the states of all ranks, reading only the workers that have changed."""
        slots, ranks = self._config.slots, list(self._seen.ranks)
        exits = {exit.state.rank: exit for exit in self._seen.exits}
        for index in self._new:
            agent = self._agents[index]
            for rank in range(index * slots, (index + 1) * slots):
                ranks[rank] = agent.states.get(rank, waiting_rank_state(rank))
                exits.pop(rank, None)
                if rank in agent.exits:
                    exits[rank] = agent.exits[rank]
        return RankViews(tuple(ranks), tuple(exits[rank] for rank in sorted(exits)), {})

    def _notify(self) -> None:
        self.changes += 1
        self._changed.notify_all()

    def _agent(self, index: int, instance: str) -> RegisteredAgent | None:
        agent = self._agents.get(index)
        if agent is None or agent.registration.instance != instance:
            return None
        agent.contact_at = self._clock()
        return agent

    def _count_stream(self, index: int, instance: str, change: int) -> bool:
        with self._changed:
            agent = self._agent(index, instance)
            if agent is None:
                return False
            agent.streams += change
            if change > 0:
                agent.attached, self._arrived = True, agent.contact_at
            self._notify()
            return True

    def _record_ranks(self, agent: RegisteredAgent, ranks: tuple[RankState, ...]) -> None:
        now = self._clock()
        agent.contact_at, agent.slots_seen = now, None
        self._new.add(agent.registration.worker_index)
        for state in ranks:
            before = agent.states.get(state.rank)
            if state.phase is not RankPhase.WAITING and (before is None or exit_key(before) != exit_key(state)):
                self._placed[state.rank] = agent.registration.worker_index
            agent.states[state.rank] = state
            self._lives[state.rank] = max(state.life, self._lives.get(state.rank, 0))
            known = agent.exits.get(state.rank)
            if state.phase in ENDED and (known is None or state_supersedes(state, known.state)):
                agent.exits[state.rank] = RankExit(state, now - state.exited_ago_s)

    def _slot_views(self, worker: int, now: float) -> dict[int, SlotView]:
        slots = range(worker * self._config.slots, (worker + 1) * self._config.slots)
        agent = self._agents.get(worker)
        if agent is None:
            lost = now - self._expected_since >= self._config.lost_after_s
            return {slot: SlotView(slot, worker, lost=lost) for slot in slots}
        ended = self._is_lost(agent.registration)
        lost = ended or self._is_quiet(agent, now)
        seen_by = (lost or not agent.streams, lost, ended, bool(agent.leaving), agent.order)
        if agent.slots_seen is None or agent.slots_seen[0] != seen_by or self.ranks_move:
            agent.slots_seen = seen_by, {slot: self._slot_view(slot, agent, lost, ended) for slot in slots}
        return agent.slots_seen[1]

    def _slot_view(self, slot: int, agent: RegisteredAgent, lost: bool, ended: bool) -> SlotView:
        return SlotView(
            slot=slot,
            worker=agent.registration.worker_index,
            instance=agent.registration.instance,
            state=self._state_of(slot, agent),
            order=agent.order,
            silent=lost or not agent.streams,
            lost=lost,
            leaving=bool(agent.leaving),
            pod_ended=ended,
        )

    def _state_of(self, slot: int, agent: RegisteredAgent) -> RankState:
        """Return the state of a slot's newest process, on whichever worker it runs."""
        if not self.ranks_move:
            return agent.states.get(slot) or waiting_rank_state(slot)
        found = [other.states[slot] for other in self._agents.values() if slot in other.states]
        return max(found, key=lambda state: state.life, default=waiting_rank_state(slot))

    def _order_for(self, index: int) -> Order | None:
        order = self.order
        if not isinstance(order, Form):
            return None
        slots = {member.slot for member in order.world.members}
        return order if any(slot // self._config.slots == index for slot in slots) else None

    def _worker_view(self, index: int, now: float) -> WorkerView:
        agent = self._agents.get(index)
        if agent is None:
            return WorkerView(index, f"{self._config.job.name}-worker-{index}")
        # An open stream proves little if the other host disappeared without closing it: then heartbeats stop.
        quiet = self._is_quiet(agent, now) or (agent.attached and not agent.streams)
        if quiet or agent.cached_view is None or agent.leaving != agent.cached_view.leaving:
            worker = agent.registration
            since = agent.leaving_since
            view = WorkerView(index, worker.pod, worker.node, None, agent.leaving, since, worker.pod_uid)
            if quiet:
                return replace(view, silent_since=self._silent_since(agent))
            agent.cached_view = view
        return agent.cached_view

    def _is_quiet(self, agent: RegisteredAgent, now: float) -> bool:
        return now - self._silent_since(agent) >= (self._silence_s if agent.streams else self._lost_after_s)

    def _silent_since(self, agent: RegisteredAgent) -> float:
        """Return the time of an agent's last call. While other agents register, it may be later than the real call,
        because calls are queued."""
        return min(max(agent.contact_at, self._arrived), agent.contact_at + self._config.behind_s)

    def _is_lost(self, registration: Registration) -> bool:
        return 0 < registration.incarnation <= self._lost_incarnations.get(registration.worker_index, 0)

    def _ended(self, registration: Registration) -> Refusal | None:
        if not self._is_lost(registration):
            return None
        what = f"pod {registration.pod} of incarnation {registration.incarnation}"
        return Refusal(f"{what} has ended according to the operator; a new pod takes its place")

    def _duplicate(self, registration: Registration) -> Refusal | None:
        index = registration.worker_index
        agent = self._agents.get(index)
        if agent is None or agent.registration.instance == registration.instance:
            return None
        if self.order is None and not agent.streams and not agent.states:
            return None  # its pod restarted while the gang still assembles: the newer agent replaces it
        if self.vacancy_s and not agent.streams:
            return None  # the existence of the newer pod implies that the older one has ended
        if not agent.streams:
            # The existence of the newer pod implies that the older one has ended: stop waiting for it.
            long_ago = self._clock() - self._lost_after_s - self._config.behind_s
            agent.contact_at, agent.attached = min(agent.contact_at, long_ago), True
        return Refusal(
            f"worker {index} is already registered in attempt {registration.attempt} from pod {agent.registration.pod} "
            f"at {agent.registration.address}; a worker that was restarted joins the next attempt"
        )
