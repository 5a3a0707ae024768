"""Agents and ranks of an elastic job in simulated time, and the launcher's machine that brings them together."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ringtrain_job.control.model import Prepare, RankPhase, RankState
from ringtrain_job.launcher.elastic_end import AttemptEnd
from ringtrain_job.launcher.generation import Formed, advance_generation
from ringtrain_job.launcher.generation_state import GenerationOrders, GenerationPhase, GenerationRules, GenerationState
from ringtrain_job.launcher.members import SlotView, WorldView

LOST_AFTER = 5
RULES = GenerationRules(
    min_ranks=2,
    max_ranks=8,
    shrinks=False,
    restarts=False,
    replace_timeout_s=30,
    join_delay_s=5,
    generation_limit=10_000,
    timeout_s=20,
    start_timeout_s=60,
)


@dataclass
class Rank:
    """A process: what it does next happens at `due`. `held`: stopped by a signal, it does nothing by itself."""

    life: int
    due: int
    phase: RankPhase = RankPhase.RUNNING
    formation: int = 0
    parked: bool = False
    joined: bool = False
    committed: int = 0
    unshared: bool = False
    adopted: int = 0
    exit_code: int | None = None
    held: bool = False
    asked_at: int | None = None  # when it was told to leave its formation
    tail: tuple[str, ...] = ()

    def end(self, phase: RankPhase, code: int, tail: tuple[str, ...] = ()) -> None:
        """The process is no more."""
        self.phase, self.exit_code, self.tail = phase, code, tail


@dataclass
class Agent:
    """A pod. `cut`: it lives and cannot be heard. `told`: what the launcher last heard from it, and when."""

    instance: str
    ranks: dict[int, Rank] = field(default_factory=dict)
    lives: dict[int, int] = field(default_factory=dict)
    order: Prepare | Formed | None = None
    cut: bool = False
    leaving: bool = False
    heard: int = 0
    told: dict[int, RankState] = field(default_factory=dict)
    told_order: int = 0


class World:
    """A job of `workers` pods with `slots` each. `step` lets a second pass."""

    def __init__(
        self, seed: int, rules: GenerationRules = RULES, workers: int = 4, slots: int = 2, asked: int = 3
    ) -> None:
        self.prompt = False  # agents speak every second
        self.random = random.Random(seed)
        self.rules, self.workers, self.slots = rules, workers, slots
        self.asked = frozenset(range(asked * slots))
        self.now = 0
        self.state = GenerationState()
        self.end: AttemptEnd | None = None
        self.agents: dict[int, Agent] = {}
        self.instances = 0
        self.formed: list[Formed] = []
        self.orders: list[int] = []
        self.given: list[Prepare | Formed] = []
        self.launcher_since = 0
        self.registered: dict[int, str] = {}
        self._ghosts: dict[str, Agent] = {}
        self.ended: set[str] = set()  # instances of agents whose pods the operator knows to have ended
        self._last_order: Prepare | Formed | None = None
        self._forgot = False

    # What goes wrong

    def kill(self, *slots: int, code: int = 137, tail: tuple[str, ...] = ()) -> None:
        """End the processes of `slots`."""
        for rank in map(self.rank, slots):
            if rank and rank.phase is RankPhase.RUNNING:
                rank.end(RankPhase.FAILED, code, tail)

    def hold(self, slot: int) -> None:
        """SIGSTOP."""
        rank = self.rank(slot)
        if rank:
            rank.held = True

    def lose(self, worker: int) -> None:
        """The pod is gone with all that is in it."""
        self.agents.pop(worker, None)

    def start(self, worker: int) -> None:
        """A new pod of this index, unless there is one."""
        if worker not in self.agents:
            self.instances += 1
            self.agents[worker] = Agent(f"i{self.instances}", heard=self.now)

    def restart_launcher(self) -> None:
        """The launcher's process dies and comes back with what it has written down."""
        self.state = replace(self.state, orders=replace(self.state.orders, given=False))
        self.launcher_since = self.now
        self.registered = {}
        self._last_order = None

    def forget(self) -> None:
        """The launcher's process comes back, and what it had written down is lost."""
        self.restart_launcher()
        self.state = GenerationState(orders=GenerationOrders(self.now * 1000))
        self.formed.clear()
        self._forgot = True

    # What everybody knows

    def rank(self, slot: int) -> Rank | None:
        """The process of `slot`."""
        agent = self.agents.get(slot // self.slots)
        return agent.ranks.get(slot) if agent else None

    def process(self, slot: int) -> Rank:
        """The process of `slot`, which is there."""
        rank = self.rank(slot)
        assert rank is not None, f"slot {slot} has no process"
        return rank

    def in_formation(self) -> dict[int, int]:
        """Formation of each slot whose process is in one, of agents that are not cut off."""
        return {
            slot: rank.formation
            for agent in self.agents.values()
            if not agent.cut
            for slot, rank in agent.ranks.items()
            if rank.phase is RankPhase.RUNNING and rank.formation and not rank.parked
        }

    def view(self) -> WorldView:
        """Return the launcher's view: the last report of each agent."""
        slots = {}
        for slot in range(self.workers * self.slots):
            worker = slot // self.slots
            agent = self.agents.get(worker)
            instance = self.registered.get(worker, "")
            known = agent if agent is not None and agent.instance == instance else self._ghosts.get(instance)
            if known is None:
                lost = self.now - self.launcher_since >= LOST_AFTER
                slots[slot] = SlotView(slot, worker, lost=lost)
                continue
            quiet = self.now - known.heard
            slots[slot] = SlotView(
                slot,
                worker,
                instance,
                known.told.get(slot, RankState(slot, RankPhase.WAITING)),
                known.told_order,
                silent=quiet >= 2,
                lost=quiet >= LOST_AFTER or instance in self.ended,
                leaving=known.leaving,
                pod_ended=instance in self.ended,
            )
        return WorldView(slots, self.asked)

    # What happens in a second

    def step(self, seconds: int = 1) -> None:
        """So many seconds pass."""
        for _ in range(seconds):
            self._step()

    def _step(self) -> None:
        """A second passes: ranks, agents, what agents say, the launcher."""
        self.now += 1
        if self.end is not None:
            return
        for agent in self.agents.values():
            self._run_ranks(agent)
        for worker, agent in sorted(self.agents.items()):
            self._speak(worker, agent)
        self._launch()

    def _run_ranks(self, agent: Agent) -> None:
        order = agent.order
        for slot, rank in agent.ranks.items():
            if rank.phase is not RankPhase.RUNNING:
                continue
            urgent = isinstance(order, Prepare) and order.urgent and rank.formation < order.formation
            if isinstance(order, Prepare) and order.restart:
                if not rank.held or (rank.asked_at is not None and self.now - rank.asked_at > 3):
                    rank.end(RankPhase.STOPPED, 143)
                rank.asked_at = rank.asked_at or self.now
                continue
            if urgent and not rank.parked and rank.formation:
                rank.asked_at = rank.asked_at or self.now
                if self.now - rank.asked_at >= self.rules.timeout_s:
                    rank.end(RankPhase.STOPPED, 137)
            if rank.held or self.now < rank.due:
                continue
            if not rank.formation and not rank.parked and not self.rules.restarts:
                rank.parked = True  # has started
            elif rank.formation and not rank.parked and not self.rules.restarts:
                self._train(rank, isinstance(order, Prepare) and order.formation > rank.formation, urgent)
            elif rank.parked and order and slot not in order.slots and _may_go(order, rank):
                rank.end(RankPhase.STOPPED, 0)

    def _train(self, rank: Rank, told: bool, urgent: bool) -> None:
        """In its formation: meet the others, or leave when told or when one of them is not there."""
        mates = [mate for agent in self.agents.values() for mate in agent.ranks.values()]
        here = sum(mate.formation == rank.formation and mate.phase is RankPhase.RUNNING for mate in mates)
        ended = sum(mate.formation == rank.formation and mate.phase is RankPhase.SUCCEEDED for mate in mates)
        left = any(mate.formation == rank.formation and (mate.parked or mate.held) for mate in mates)
        size = next((len(formed.members) for formed in self.formed if formed.generation == rank.formation), 0)
        complete = here + ended == size
        if told or left or (not complete and (rank.joined or self.now > rank.due + 10)):
            rank.unshared = urgent or not (told and complete)
            rank.parked, rank.asked_at, rank.due = True, None, self.now + self.random.randint(0, 2)
        elif complete:
            rank.joined = True

    def _speak(self, worker: int, agent: Agent) -> None:
        if agent.cut or (not self.prompt and self.random.random() < 0.3):  # what it says comes late
            return
        if self.registered.get(worker) != agent.instance:
            old = self._ghost_of(worker)
            if old is not None and self.now - old.heard < 2:
                return
            self.registered[worker] = agent.instance
        self._ghosts[agent.instance] = agent
        agent.heard, agent.told_order = self.now, agent.order.number if agent.order else 0
        agent.told = {
            slot: RankState(
                slot,
                rank.phase,
                rank.exit_code,
                "SIGKILL" if rank.exit_code == 137 else "",
                life=rank.life,
                formation=rank.formation,
                parked=rank.parked,
                joined=rank.joined,
                committed=rank.committed,
                unshared=rank.unshared,
                adopted=rank.adopted,
                log_tail=rank.tail,
            )
            for slot, rank in agent.ranks.items()
        }
        if self._last_order is not None and (self.prompt or self.random.random() < 0.8):
            self._take(worker, agent, self._last_order)

    def _ghost_of(self, worker: int) -> Agent | None:
        return self._ghosts.get(self.registered.get(worker, ""))

    def _take(self, worker: int, agent: Agent, order: Prepare | Formed) -> None:
        """The agent does what an order says; taking one again is no news but for processes that have ended."""
        agent.order = order
        mine = [slot for slot in sorted(order.slots) if slot // self.slots == worker]
        members = (
            {m.slot: m for m in order.members if m.instance == agent.instance} if isinstance(order, Formed) else {}
        )
        for slot in mine:
            rank = agent.ranks.get(slot)
            if isinstance(order, Formed) and slot in members:
                self._begin(agent, slot, rank, members[slot].life, order.generation)
                continue
            known = rank is not None and agent.told.get(slot) is not None and agent.told[slot].life == rank.life
            restarts = (isinstance(order, Prepare) and order.restart) or self.rules.restarts
            dead = rank is None or (
                rank.phase in (RankPhase.FAILED, RankPhase.STOPPED) and known and agent.told[slot].phase is rank.phase
            )
            if dead and not restarts and not agent.leaving:
                self._new_life(agent, slot)
            elif (
                isinstance(order, Formed)
                and rank
                and rank.formation
                and not rank.parked
                and rank.formation < order.generation
            ):
                rank.end(RankPhase.STOPPED, 137)

    def _begin(self, agent: Agent, slot: int, rank: Rank | None, life: int, formation: int) -> None:
        if self.rules.restarts:
            if agent.lives.get(slot, 0) < life:
                agent.lives[slot] = life
                agent.ranks[slot] = Rank(life, self.now, formation=formation, joined=True)
        elif rank and rank.life == life and rank.parked and rank.formation < formation:
            rank.formation, rank.parked, rank.joined = formation, False, False
            rank.due = self.now + self.random.randint(0, 3)

    def _new_life(self, agent: Agent, slot: int) -> None:
        life = agent.lives[slot] = agent.lives.get(slot, 0) + 1
        agent.ranks[slot] = Rank(life, self.now + self.random.randint(0, 4))

    def _launch(self) -> None:
        for _ in range(3):
            step = advance_generation(self.state, self.rules, self.view(), self.now)
            self.state = step.state
            self.end = step.end
            if step.order is None or step.end is not None:
                return
            self.orders.append(step.order.number)
            self.given.append(step.order)
            self._last_order = step.order
            if isinstance(step.order, Formed) and step.order.generation not in {f.generation for f in self.formed}:
                self._check(step.order)
                self.formed.append(step.order)

    def _check(self, formed: Formed) -> None:
        """Assert the invariants of every generation."""
        last = self.formed[-1].generation if self.formed else 0
        assert formed.generation > last, "formations only grow"
        slots = [process.slot for process in formed.members]
        assert len(set(slots)) == len(slots) <= self.rules.max_ranks
        assert set(slots) <= set(range(self.workers * self.slots))
        seen = self.view().slots
        lost = {slot for slot in seen if seen[slot].lost or (self._forgot and not seen[slot].instance)}
        inside = {slot: number for slot, number in self.in_formation().items() if slot not in lost}
        assert not inside, f"formation {formed.generation} while slots are in earlier ones: {inside}"
        if not self.rules.restarts:
            before = {(p.slot, p.instance, p.life) for p in self.formed[-1].members} if self.formed else set()
            stayed = [(p.slot, p.instance, p.life) in before for p in formed.members]
            assert stayed[0] or not any(stayed), "rank 0 is a survivor if there is one"
        workers = [slot // self.slots for slot in slots]
        blocks = [worker for index, worker in enumerate(workers) if index == 0 or workers[index - 1] != worker]
        assert len(blocks) == len(set(blocks)), "slots of a worker are side by side"

    def settled(self) -> bool:
        """Whether everyone that is asked for is in the formation that runs."""
        inside = {process.slot for process in self.state.members}
        return (
            self.state.phase is GenerationPhase.RUNNING
            and inside == set(self.asked)
            and set(self.in_formation()) == inside
        )

    def until(self, said: Callable[[], bool], seconds: int = 200) -> None:
        """Step until `said` is so; AssertionError when it is not after `seconds`."""
        for _ in range(seconds):
            if said():
                return
            self.step()
        raise AssertionError(f"after {seconds} s: {self.state}, {self.end}")


def _may_go(order: Prepare | Formed, rank: Rank) -> bool:
    """A member of the last formation is sent away when the next one is made."""
    return isinstance(order, Formed) or not rank.formation
