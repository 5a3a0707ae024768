"""Pure functions that choose the members of an elastic job's next generation from the states of all slots (places of
ranks), and describe a world for agents."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from ringtrain.shared.address import host_port
from ringtrain_job.control.model import ENDED, Member, RankPhase, RankState, Registration, World


@dataclass(frozen=True)
class MemberProcess:
    """Process that is or was a member of a generation of an elastic world.

    `instance`: the agent that runs it. `life`: number of the process in its slot. `joined`: first generation of the
    process.
    """

    slot: int
    instance: str
    life: int
    joined: int

    @property
    def member(self) -> Member:
        """The member as orders contain it."""
        return Member(self.slot, self.life)


@dataclass(frozen=True)
class SlotView:
    """State of one slot (place of a rank) and of its newest process, as the launcher knows it.

    `instance`: id of the slot's agent; empty until an agent has registered. `order`: number of the newest order that
    the agent had received when it sent `state`. `silent`: whether the agent is not in contact now. `lost`: whether the
    agent has been silent for so long that it counts as lost. `leaving`: whether the agent's pod was ordered to stop.
    `pod_ended`: whether the agent is lost, and the operator knows that no process runs in the agent's pod any more.
    """

    slot: int
    worker: int
    instance: str = ""
    state: RankState = field(default_factory=lambda: RankState(0, RankPhase.WAITING))
    order: int = 0
    silent: bool = True
    lost: bool = False
    leaving: bool = False
    pod_ended: bool = False

    @property
    def runs(self) -> bool:
        """Whether the slot has a running process."""
        return not self.lost and self.state.phase is RankPhase.RUNNING

    @property
    def finished(self) -> bool:
        """Whether the slot's program exited with 0."""
        return self.state.phase is RankPhase.SUCCEEDED


@dataclass(frozen=True)
class WorldView:
    """States of all slots of an elastic job at one time. `asked`: slots in which a rank is requested."""

    slots: Mapping[int, SlotView]
    asked: frozenset[int]
    progress: int = 0

    @property
    def progressed(self) -> int:
        """Highest step that any rank has committed or reported."""
        return max([self.progress, *(slot.state.committed for slot in self.slots.values())])


class Standing(Enum):
    """State of a generation's member: unknown, starting, in the generation, has left it, finished, or lost."""

    UNKNOWN = auto()  # its agent has not registered with this launcher yet
    STARTING = auto()  # it has not received the generation yet
    IN = auto()
    LEFT = auto()  # it waits for another generation
    FINISHED = auto()
    GONE = auto()


def member_standing(process: MemberProcess, generation: int, view: WorldView) -> Standing:
    """Return the state of `process` as a member of `generation`."""
    slot = view.slots[process.slot]
    if slot.instance != process.instance:
        return Standing.GONE if slot.instance or slot.lost else Standing.UNKNOWN
    state = slot.state
    if state.life == process.life and slot.finished:
        return Standing.FINISHED
    if slot.lost or state.life > process.life:
        return Standing.GONE
    if state.life < process.life:
        return Standing.STARTING
    if state.phase in ENDED:
        return Standing.GONE
    if not state.parked:
        return Standing.IN
    return Standing.LEFT if state.formation >= generation else Standing.STARTING


def is_newest(process: MemberProcess, view: WorldView) -> bool:
    """Return whether `process` is the newest known process of its slot."""
    slot = view.slots[process.slot]
    return (slot.instance, slot.state.life) == (process.instance, process.life)


def may_return(process: MemberProcess, view: WorldView) -> bool:
    """Return whether `process` may reconnect, because it is not known to have ended."""
    slot = view.slots[process.slot]
    if not slot.instance:  # its agent has not registered with this launcher process
        return True
    return is_newest(process, view) and slot.state.phase not in ENDED and not slot.pod_ended


def wanted_slots(view: WorldView, *, again: bool) -> frozenset[int]:
    """Return the slots that should have a process: the requested slots, except those on pods that must stop.

    `again`: whether finished programs run again. If False, slots with a finished program are excluded too.
    """
    return frozenset(
        index
        for index in view.asked
        if not (view.slots[index].leaving and not view.slots[index].lost) and (again or not view.slots[index].finished)
    )


def are_members_fenced(
    members: Sequence[MemberProcess], generation: int, view: WorldView, order: int, *, stopped: bool
) -> bool:
    """Return whether no process of a connected agent can still be in a generation earlier than `generation`.

    `members`: members of the last generation. `order`: number of an order. A process counts only if its agent had
    received that order when it sent the process's state. `stopped`: whether all processes must have ended.
    """
    where = {process.slot: member_standing(process, generation, view) for process in members}
    if Standing.UNKNOWN in where.values():
        return False
    for slot in view.slots.values():
        if not slot.instance or slot.lost:
            continue
        if stopped and (slot.runs or slot.order < order):
            return False
        at = where.get(slot.slot, Standing.GONE)
        was_in = at in (Standing.STARTING, Standing.IN, Standing.LEFT) or slot.state.formation
        if slot.runs and was_in and (slot.order < order or not slot.state.parked):
            return False
    return True


def member_candidates(
    wanted: frozenset[int], view: WorldView, order: int, *, stopped: bool, staying: frozenset[int] = frozenset()
) -> list[SlotView]:
    """Return those of the `wanted` slots whose processes can join now.

    `stopped`: whether every generation starts new processes; if True, return the slots in which a process can be
    started. `order`: an agent counts only if it had received this order when it sent its state. `staying`: slots whose
    processes have the state, and which count although their pods were ordered to stop.
    """
    return [
        view.slots[index]
        for index in sorted(wanted)
        if _is_slot_available(view.slots[index], stopped=stopped, leaves=index not in staying)
        and view.slots[index].order >= order
    ]


def slots_to_keep(
    members: Sequence[MemberProcess], wanted: frozenset[int], view: WorldView, least: int
) -> frozenset[int]:
    """Return the slots of live `members` that are no longer requested but must stay in the next generation.

    `wanted`: the requested slots. `least`: lowest number of ranks. At least one process that has the state stays until
    another process has it. Further processes stay if `least` ranks need them, except those whose pods were ordered to
    stop: newcomers replace those only after they have ended.
    """
    alive = sorted(members, key=lambda process: (process.joined, process.slot))
    unwanted = [process.slot for process in alive if process.slot not in wanted]
    ordered = sorted(unwanted, key=lambda slot: view.slots[slot].leaving)
    stay = len(alive) - len(unwanted)
    lasting = sum(not view.slots[slot].leaving for slot in unwanted)
    missing = least - stay - len(newcomer_slots(members, wanted, view, stopped=False))
    return frozenset(ordered[: max(0, min(lasting, missing)) if stay else max(1, missing)])


def newcomer_slots(
    members: Sequence[MemberProcess], wanted: frozenset[int], view: WorldView, *, stopped: bool
) -> set[int]:
    """Return the `wanted` slots that are not in the current generation and could join the next one.

    `members`: members of the current generation. If `stopped` is True, every generation starts new processes; a slot is
    then available only while it has no process. Otherwise its process must be waiting for a generation.
    """
    inside = {process.slot for process in members}
    return {index for index in wanted - inside if _is_slot_available(view.slots[index], stopped=stopped)}


def _is_slot_available(slot: SlotView, *, stopped: bool, leaves: bool = True) -> bool:
    if not slot.instance or slot.silent or slot.lost or (slot.leaving and leaves):
        return False
    return not slot.runs if stopped else slot.runs and slot.state.parked


def choose_members(
    chosen: Sequence[SlotView], members: Sequence[MemberProcess], generation: int, most: int, *, stopped: bool
) -> tuple[MemberProcess, ...]:
    """Return the members of `generation` in rank order: by worker, the worker with the oldest process first.

    `chosen`: slots whose processes can join. If there are more than `most`, those with the oldest processes become
    members. `members`: members of the previous generation; if one of them joins, rank 0 is one of them. `stopped`:
    whether new processes are started for the generation.
    """
    former = {(process.slot, process.instance, process.life): process.joined for process in members}

    def process_of(slot: SlotView) -> MemberProcess:
        life = slot.state.life + 1 if stopped else slot.state.life
        # If the launcher's journal is lost, the processes themselves report that they have been in a world.
        own = 0 if stopped or members else slot.state.formation
        joined = former.get((slot.slot, slot.instance, life)) or own or generation
        return MemberProcess(slot.slot, slot.instance, life, joined)

    found = [(process_of(slot), slot.worker) for slot in chosen]
    found = sorted(found, key=lambda one: (one[0].joined, one[0].slot))[:most]
    age: dict[int, int] = {}
    for process, worker in found:
        age[worker] = min(age.get(worker, process.joined), process.joined)
    found.sort(key=lambda one: (age[one[1]], one[1], one[0].joined, one[0].slot))
    return tuple(process for process, _ in found)


def make_world(members: Sequence[Registration], sites: Mapping[int, str] | None = None) -> World:
    """Return the world of the registered agents `members`, in rank order. `sites`: site names by worker index."""
    first = members[0]
    return World(
        attempt=first.attempt,
        ring_addresses=tuple(host_port(m.address, port) for m in members for port in m.ring_ports),
        tf_addresses=tuple(host_port(m.address, port) for m in members for port in m.tf_ports),
        master_address=first.address,
        master_port=first.master_port,
        sites=tuple(sites[m.worker_index] for m in members for _ in m.ring_ports) if sites else (),
    )


def make_generation_world(
    generation: int,
    members: Sequence[MemberProcess],
    registrations: Mapping[int, Registration],
    sites: Mapping[int, str] | None = None,
) -> World:
    """Return the world of `generation`. `members`: in rank order. `sites`: site names by worker."""
    slots = next(iter(registrations.values())).slots  # equal in all registrations; the launcher refuses others
    agents = [registrations[process.slot // slots] for process in members]
    placed = [(agent, process.slot % slots) for agent, process in zip(agents, members, strict=True)]
    return World(
        attempt=agents[0].attempt,
        ring_addresses=tuple(host_port(agent.address, agent.ring_ports[local]) for agent, local in placed),
        tf_addresses=tuple(host_port(agent.address, agent.tf_ports[local]) for agent, local in placed),
        master_address=agents[0].address,
        master_port=agents[0].master_port,
        formation=generation,
        members=tuple(process.member for process in members),
        sites=tuple(sites[agent.worker_index] for agent in agents) if sites else (),
    )
