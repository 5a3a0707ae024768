"""Pure functions that decide what the agent does next with one slot, a place of a rank in an elastic job."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from ringtrain_job.control.model import Form, Prepare, World


class ElasticSlotAction(Enum):
    """Action of the agent on a slot: start a process, send it a message, or end it."""

    START = auto()
    WORLD = auto()
    CHANGE = auto()
    LEAVE = auto()
    TERMINATE = auto()
    KILL = auto()


@dataclass(frozen=True)
class ElasticSlotOrder:
    """The launcher's newest order for an elastic job.

    `generation`: the generation that is prepared or begins. `slots`: slots that should have a process. `restart`:
    whether this generation begins with new processes. `since`: time of the first order for this generation.
    `urgent_since`: time from which processes of earlier generations have to leave. `world`, `members`: set once members
    are chosen; `members` maps the slot of each member to the number of its process. `former`: world of the last
    generation that was formed.
    """

    generation: int
    slots: frozenset[int]
    restart: bool
    since: float
    urgent_since: float | None
    world: World | None = None
    members: Mapping[int, int] = field(default_factory=dict)
    former: World | None = None

    @property
    def leaving(self) -> tuple[int, ...]:
        """Ranks of the previous generation whose slots this generation does not use."""
        members = () if self.former is None else self.former.members
        return tuple(rank for rank, member in enumerate(members) if member.slot not in self.slots)


@dataclass(frozen=True)
class OwnSlot:
    """State of one slot (place of a rank) of this worker, and of its newest process. `life`: number of that process,
    from 1.

    `startable`: whether no process runs, the launcher knows how the last one ended, and the backoff is over.
    `generation`: generation whose world the process has, or had last. `parked`: whether the process waits for a world.
    `last_change`: generation and urgency of the newest change message that the process received. `left_since`: time at
    which the process was ordered to leave. `stopped_since`: time at which the process was first seen stopped by a
    signal (SIGSTOP).
    """

    slot: int
    life: int
    running: bool
    startable: bool = False
    generation: int = 0
    parked: bool = False
    last_change: tuple[int, bool] | None = None
    left_since: float | None = None
    stopped_since: float | None = None


@dataclass(frozen=True)
class SlotDeadlines:
    """Seconds from the order to leave a world to SIGKILL.

    `fence_s`: for a running process. `stopped_fence_s`: for a process that SIGSTOP has stopped.
    """

    fence_s: float
    stopped_fence_s: float


def current_slot_order(
    order: Prepare | Form, former: ElasticSlotOrder | None, restart: bool, now: float
) -> ElasticSlotOrder:
    """Return `order`, received at `now`, as an ElasticSlotOrder.

    `former`: the previous order. `restart`: whether every generation starts new processes. If `order` repeats `former`,
    for example after a new registration, the result retains the times of `former`.
    """
    number = order.formation if isinstance(order, Prepare) else order.world.formation
    same = former is not None and former.generation == number
    since = former.since if same and former else now
    urgent = former.urgent_since if same and former else None
    if urgent is None and (isinstance(order, Form) or order.urgent):
        urgent = now
    last = None if former is None else former.world or former.former
    current = ElasticSlotOrder(number, frozenset(order.slots), restart, since, urgent, former=last)
    if isinstance(order, Prepare):
        return replace(current, restart=restart or order.restart)
    return replace(current, world=order.world, members={member.slot: member.life for member in order.world.members})


def next_slot_action(
    order: ElasticSlotOrder, slot: OwnSlot, deadlines: SlotDeadlines, now: float
) -> ElasticSlotAction | None:
    """Return the action that is now due for `slot`; None if there is none."""
    if order.restart:
        return _restarted_slot_action(order, slot)
    return _running_slot_action(order, slot, deadlines, now) if slot.running else _absent_slot_action(order, slot)


def _restarted_slot_action(order: ElasticSlotOrder, slot: OwnSlot) -> ElasticSlotAction | None:
    """Return the action for a job whose generations all start new processes: end the old process, then start one."""
    if slot.generation >= order.generation:
        return None
    if not slot.running:
        return ElasticSlotAction.START if order.world and slot.slot in order.members and slot.startable else None
    return ElasticSlotAction.TERMINATE


def _absent_slot_action(order: ElasticSlotOrder, slot: OwnSlot) -> ElasticSlotAction | None:
    if slot.slot not in order.slots or not slot.startable:
        return None
    # A member that has ended is a loss or has finished: the launcher decides by `Prepare`.
    return None if order.members.get(slot.slot) == slot.life else ElasticSlotAction.START


def _running_slot_action(
    order: ElasticSlotOrder, slot: OwnSlot, deadlines: SlotDeadlines, now: float
) -> ElasticSlotAction | None:
    if slot.left_since is not None:
        return ElasticSlotAction.KILL if now >= slot.left_since + deadlines.fence_s else None
    # Its peers would detect the silence within this time. In a world with one rank there are none.
    if slot.stopped_since is not None and now >= slot.stopped_since + deadlines.fence_s:
        return ElasticSlotAction.KILL
    if slot.generation >= order.generation and not slot.parked:
        return None
    if slot.parked:
        return _parked_slot_action(order, slot)
    if slot.generation == 0:  # it is starting: it has not been in any world and blocks no rank
        unwanted = slot.slot not in order.slots and now >= order.since + deadlines.fence_s
        stuck = slot.stopped_since is not None and now >= slot.stopped_since + deadlines.stopped_fence_s
        return ElasticSlotAction.KILL if unwanted or stuck else None
    urgent = order.urgent_since is not None
    if slot.last_change != (order.generation, urgent):
        return ElasticSlotAction.CHANGE
    fence_s = deadlines.fence_s if slot.stopped_since is None else deadlines.stopped_fence_s
    fenced = order.urgent_since is not None and now >= order.urgent_since + fence_s
    return ElasticSlotAction.KILL if fenced else None


def _parked_slot_action(order: ElasticSlotOrder, slot: OwnSlot) -> ElasticSlotAction | None:
    if order.world and order.members.get(slot.slot) == slot.life and slot.generation < order.generation:
        return ElasticSlotAction.WORLD
    # A member of the previous world leaves when the next one is formed, because its state may be needed until then,
    # unless the next one has no members.
    is_made = order.world is not None or not order.slots
    unwanted = slot.slot not in order.slots and (is_made or slot.generation == 0)
    return ElasticSlotAction.LEAVE if unwanted else None
