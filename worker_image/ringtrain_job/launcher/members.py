"""Processes of an elastic job as the launcher sees them: who is in a formation, and who may be in the next one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from ringtrain_job.control.model import ENDED, Member, RankPhase, RankState


@dataclass(frozen=True)
class MemberProcess:
    """A process that is, or was, in a formation.

    `instance`: the agent that runs it; `life`: its number in its slot. `joined`: the formation that was its first.
    """

    slot: int
    instance: str
    life: int
    joined: int

    @property
    def member(self) -> Member:
        """As agents are told."""
        return Member(self.slot, self.life)


@dataclass(frozen=True)
class SlotView:
    """A slot and the newest process in it.

    `instance`: the agent that has the slot, empty before one registered. `order`: number of the newest order that
    the agent had when it sent `state`. `silent`: the agent is not heard of now; `lost`: it has not been for so
    long that it counts as gone. `leaving`: its pod was asked to stop. `pod_ended`: it is lost, and the operator
    knows that nothing runs in its pod any more.
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
        """Whether a process runs in it, as far as is known."""
        return not self.lost and self.state.phase is RankPhase.RUNNING

    @property
    def finished(self) -> bool:
        """Whether the program has ended here by itself with 0."""
        return self.state.phase is RankPhase.SUCCEEDED


@dataclass(frozen=True)
class WorldView:
    """All slots of the job, also those that no agent has; `asked`: those that shall have a rank."""

    slots: Mapping[int, SlotView]
    asked: frozenset[int]
    progress: int = 0

    @property
    def progressed(self) -> int:
        """Highest step that a rank has committed or reported."""
        return max([self.progress, *(slot.state.committed for slot in self.slots.values())])


class Standing(Enum):
    """Where a member of a formation is."""

    UNKNOWN = auto()  # its agent has not registered with this launcher yet
    STARTING = auto()  # it was not told of the formation yet
    IN = auto()
    LEFT = auto()  # it waits for another formation
    FINISHED = auto()
    GONE = auto()


def member_standing(process: MemberProcess, formation: int, view: WorldView) -> Standing:
    """Where `process`, a member of `formation`, is."""
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
    return Standing.LEFT if state.formation >= formation else Standing.STARTING


def is_newest(process: MemberProcess, view: WorldView) -> bool:
    """Whether `process` is the newest one of its slot that is known."""
    slot = view.slots[process.slot]
    return (slot.instance, slot.state.life) == (process.instance, process.life)


def may_return(process: MemberProcess, view: WorldView) -> bool:
    """Whether `process` may be heard of again: nobody knows that it has ended."""
    slot = view.slots[process.slot]
    if not slot.instance:  # its agent has not come to this launcher process
        return True
    return is_newest(process, view) and slot.state.phase not in ENDED and not slot.pod_ended


def wanted_slots(view: WorldView, *, again: bool) -> frozenset[int]:
    """Slots that shall have a process: those asked for, without pods that leave and programs that have finished.

    `again`: finished ones are run again.
    """
    return frozenset(
        index
        for index in view.asked
        if not (view.slots[index].leaving and not view.slots[index].lost) and (again or not view.slots[index].finished)
    )


def fenced_members(
    members: Sequence[MemberProcess], formation: int, view: WorldView, order: int, *, stopped: bool
) -> bool:
    """Whether no process of an agent that is heard of can still be in a formation.

    `order`: what agents said before they had this order does not count. `stopped`: no process may run at all.
    """
    where = {process.slot: member_standing(process, formation, view) for process in members}
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
    """Slots that can be in the next formation: a process waits there, or with `stopped` one can be started.

    `staying`: slots whose processes have the state, and count though their pods were asked to stop.
    """
    return [
        view.slots[index]
        for index in sorted(wanted)
        if _is_slot_available(view.slots[index], stopped=stopped, leaves=index not in staying)
        and view.slots[index].order >= order
    ]


def member_keepers(
    members: Sequence[MemberProcess], wanted: frozenset[int], view: WorldView, least: int
) -> frozenset[int]:
    """Slots of living `members` that are not wanted and may not leave yet.

    Somebody who has the state stays until another one has it. So do as many as are needed for `least` ranks, but
    for those whose pods were asked to stop: their places are taken by newcomers only when they are gone.
    """
    alive = sorted(members, key=lambda process: (process.joined, process.slot))
    unwanted = [process.slot for process in alive if process.slot not in wanted]
    ordered = sorted(unwanted, key=lambda slot: view.slots[slot].leaving)
    stay = len(alive) - len(unwanted)
    lasting = sum(not view.slots[slot].leaving for slot in unwanted)
    missing = least - stay - len(newcomer_members(members, wanted, view, stopped=False))
    return frozenset(ordered[: max(0, min(lasting, missing)) if stay else max(1, missing)])


def newcomer_members(
    members: Sequence[MemberProcess], wanted: frozenset[int], view: WorldView, *, stopped: bool
) -> set[int]:
    """Wanted slots outside the formation that could be in the next one."""
    inside = {process.slot for process in members}
    return {index for index in wanted - inside if _is_slot_available(view.slots[index], stopped=stopped)}


def _is_slot_available(slot: SlotView, *, stopped: bool, leaves: bool = True) -> bool:
    if not slot.instance or slot.silent or slot.lost or (slot.leaving and leaves):
        return False
    return not slot.runs if stopped else slot.runs and slot.state.parked


def choose_members(
    chosen: Sequence[SlotView], members: Sequence[MemberProcess], formation: int, most: int, *, stopped: bool
) -> tuple[MemberProcess, ...]:
    """The members of `formation` by rank: those of a worker side by side, the oldest worker first.

    Rank 0 is a process that was in the former formation, if any is. With more than `most`, the oldest are taken.
    """
    former = {(process.slot, process.instance, process.life): process.joined for process in members}

    def process_of(slot: SlotView) -> MemberProcess:
        life = slot.state.life + 1 if stopped else slot.state.life
        # Where the launcher has lost its notes, the processes themselves know that they have been in a world.
        own = 0 if stopped or members else slot.state.formation
        joined = former.get((slot.slot, slot.instance, life)) or own or formation
        return MemberProcess(slot.slot, slot.instance, life, joined)

    found = [(process_of(slot), slot.worker) for slot in chosen]
    found = sorted(found, key=lambda one: (one[0].joined, one[0].slot))[:most]
    age: dict[int, int] = {}
    for process, worker in found:
        age[worker] = min(age.get(worker, process.joined), process.joined)
    found.sort(key=lambda one: (age[one[1]], one[1], one[0].joined, one[0].slot))
    return tuple(process for process, _ in found)
