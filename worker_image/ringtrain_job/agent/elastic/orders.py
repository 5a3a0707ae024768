"""What is to be done about one slot so that the newest order comes true. Pure; asked again after every change."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from ringtrain_job.control.model import Form, Prepare, World


class ElasticSlotAction(Enum):
    """One thing to do about a slot."""

    START = auto()
    WORLD = auto()
    CHANGE = auto()
    LEAVE = auto()
    TERMINATE = auto()
    KILL = auto()


@dataclass(frozen=True)
class ElasticSlotOrder:
    """The newest order. `since`: when this formation was first spoken of; `urgent_since`: since when processes of
    earlier formations have to be out of them. `members`: life by slot, once they are chosen. `former`: the last
    formation that was made."""

    formation: int
    slots: frozenset[int]
    restart: bool
    since: float
    urgent_since: float | None
    world: World | None = None
    members: Mapping[int, int] = field(default_factory=dict)
    former: World | None = None

    @property
    def leaving(self) -> tuple[int, ...]:
        """Ranks of the former formation that are not in this one."""
        members = () if self.former is None else self.former.members
        return tuple(rank for rank, member in enumerate(members) if member.slot not in self.slots)


@dataclass(frozen=True)
class OwnSlot:
    """One slot and its newest process.

    `startable`: no process runs, the launcher knows how the last one ended, and its pause is over. `formation`:
    whose world the process has, or had last. `parked`: it waits for a world. `last_change`: formation and urgency of
    the newest change that it was told. `left_since`: when it was told to leave.
    `stopped_since`: when it was first seen that a signal has stopped it, as SIGSTOP does.
    """

    slot: int
    life: int
    running: bool
    startable: bool = False
    formation: int = 0
    parked: bool = False
    last_change: tuple[int, bool] | None = None
    left_since: float | None = None
    stopped_since: float | None = None


@dataclass(frozen=True)
class SlotDeadlines:
    """Seconds: `fence_s` from being told to leave to SIGKILL, `stopped_fence_s` for a process that is stopped and
    cannot leave."""

    fence_s: float
    stopped_fence_s: float


def current_slot_order(
    order: Prepare | Form, former: ElasticSlotOrder | None, restart: bool, now: float
) -> ElasticSlotOrder:
    """`order`, which came at `now` after `former`, in a job whose ranks are restarted (`restart`) or live on.

    An order that comes again, as to an agent that has registered again, keeps its times.
    """
    formation = order.formation if isinstance(order, Prepare) else order.world.formation
    same = former is not None and former.formation == formation
    since = former.since if same and former else now
    urgent = former.urgent_since if same and former else None
    if urgent is None and (isinstance(order, Form) or order.urgent):
        urgent = now
    last = None if former is None else former.world or former.former
    current = ElasticSlotOrder(formation, frozenset(order.slots), restart, since, urgent, former=last)
    if isinstance(order, Prepare):
        return replace(current, restart=restart or order.restart)
    return replace(current, world=order.world, members={member.slot: member.life for member in order.world.members})


def next_slot_action(
    order: ElasticSlotOrder, slot: OwnSlot, deadlines: SlotDeadlines, now: float
) -> ElasticSlotAction | None:
    """The next thing to do about `slot`; None: nothing now."""
    if order.restart:
        return _restarted_slot_action(order, slot)
    return _running_slot_action(order, slot, deadlines, now) if slot.running else _absent_slot_action(order, slot)


def _restarted_slot_action(order: ElasticSlotOrder, slot: OwnSlot) -> ElasticSlotAction | None:
    """Each member gets one process in each formation; what is left of an earlier one is ended first."""
    if slot.formation >= order.formation:
        return None
    if not slot.running:
        return ElasticSlotAction.START if order.world and slot.slot in order.members and slot.startable else None
    return ElasticSlotAction.TERMINATE


def _absent_slot_action(order: ElasticSlotOrder, slot: OwnSlot) -> ElasticSlotAction | None:
    if slot.slot not in order.slots or not slot.startable:
        return None
    # A member that has ended is a loss, or has done its work: the launcher says by `Prepare` what follows.
    return None if order.members.get(slot.slot) == slot.life else ElasticSlotAction.START


def _running_slot_action(
    order: ElasticSlotOrder, slot: OwnSlot, deadlines: SlotDeadlines, now: float
) -> ElasticSlotAction | None:
    if slot.left_since is not None:
        return ElasticSlotAction.KILL if now >= slot.left_since + deadlines.fence_s else None
    # Its peers would find it by its silence within this time; in a world of its own it has none.
    if slot.stopped_since is not None and now >= slot.stopped_since + deadlines.fence_s:
        return ElasticSlotAction.KILL
    if slot.formation >= order.formation and not slot.parked:
        return None
    if slot.parked:
        return _parked_slot_action(order, slot)
    if slot.formation == 0:  # on its way: it has not been in any world, and holds up no rank
        unwanted = slot.slot not in order.slots and now >= order.since + deadlines.fence_s
        stuck = slot.stopped_since is not None and now >= slot.stopped_since + deadlines.stopped_fence_s
        return ElasticSlotAction.KILL if unwanted or stuck else None
    urgent = order.urgent_since is not None
    if slot.last_change != (order.formation, urgent):
        return ElasticSlotAction.CHANGE
    fence_s = deadlines.fence_s if slot.stopped_since is None else deadlines.stopped_fence_s
    fenced = order.urgent_since is not None and now >= order.urgent_since + fence_s
    return ElasticSlotAction.KILL if fenced else None


def _parked_slot_action(order: ElasticSlotOrder, slot: OwnSlot) -> ElasticSlotAction | None:
    if order.world and order.members.get(slot.slot) == slot.life and slot.formation < order.formation:
        return ElasticSlotAction.WORLD
    # A member of the former world is sent away when the next one is made: what it holds may be needed before,
    # unless nobody is to be in that.
    is_made = order.world is not None or not order.slots
    unwanted = slot.slot not in order.slots and (is_made or slot.formation == 0)
    return ElasticSlotAction.LEAVE if unwanted else None
