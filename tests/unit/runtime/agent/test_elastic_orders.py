"""Actions of an agent for a slot that follow from the launcher's newest order."""

from dataclasses import replace

import pytest

from ringtrain_job.agent.elastic.orders import (
    ElasticSlotAction,
    ElasticSlotOrder,
    OwnSlot,
    SlotDeadlines,
    current_slot_order,
    next_slot_action,
)
from ringtrain_job.control.model import Form, Member, Prepare, World

DEADLINES = SlotDeadlines(fence_s=60, stopped_fence_s=5)
WORLD = World(1, ("a:1", "b:1"), ("a:2", "b:2"), "a", 3, 5, (Member(3, 2), Member(1, 1)))

PREPARE = current_slot_order(Prepare(5, (1, 2, 3)), None, restart=False, now=100)
URGENT = current_slot_order(Prepare(5, (1, 2, 3), urgent=True), None, restart=False, now=100)
FORM = current_slot_order(Form(WORLD, (1, 2, 3)), PREPARE, restart=False, now=110)
STOP_ALL = current_slot_order(Prepare(5, (1, 2, 3), urgent=True, restart=True), None, restart=True, now=100)
START_ALL = current_slot_order(Form(WORLD, (1, 2, 3)), STOP_ALL, restart=True, now=110)

NEVER = OwnSlot(3, life=0, running=False, startable=True)
UNKNOWN = OwnSlot(3, life=2, running=False)
ENDED = OwnSlot(3, life=2, running=False, startable=True, generation=4)
COMING = OwnSlot(3, life=2, running=True)
PARKED = OwnSlot(3, life=2, running=True, parked=True, generation=4)
INSIDE = OwnSlot(3, life=2, running=True, generation=4)


@pytest.mark.parametrize(
    ("order", "slot", "step"),
    [
        pytest.param(PREPARE, NEVER, ElasticSlotAction.START, id="prepare-never-started"),
        pytest.param(PREPARE, ENDED, ElasticSlotAction.START, id="prepare-ended-and-known"),
        pytest.param(PREPARE, UNKNOWN, None, id="prepare-ended-and-not-known-yet"),
        pytest.param(PREPARE, replace(NEVER, slot=7), None, id="prepare-not-wanted"),
        pytest.param(PREPARE, COMING, None, id="prepare-on-its-way"),
        pytest.param(PREPARE, PARKED, None, id="prepare-parked"),
        pytest.param(PREPARE, INSIDE, ElasticSlotAction.CHANGE, id="prepare-in-the-former"),
        pytest.param(PREPARE, replace(INSIDE, last_change=(5, False)), None, id="prepare-told"),
        pytest.param(
            URGENT, replace(INSIDE, last_change=(5, False)), ElasticSlotAction.CHANGE, id="urgent-told-that-it-is-not"
        ),
        pytest.param(URGENT, replace(INSIDE, last_change=(5, True)), None, id="urgent-told"),
        pytest.param(PREPARE, replace(PARKED, slot=7), None, id="leaves-when-the-next-is-made"),
        pytest.param(PREPARE, replace(PARKED, slot=7, generation=0), ElasticSlotAction.LEAVE, id="newcomer-not-wanted"),
        pytest.param(PREPARE, replace(INSIDE, slot=7), ElasticSlotAction.CHANGE, id="in-the-former-and-not-wanted"),
        pytest.param(PREPARE, replace(PARKED, slot=7, left_since=100), None, id="told-to-leave"),
        pytest.param(FORM, PARKED, ElasticSlotAction.WORLD, id="form-member"),
        pytest.param(FORM, replace(PARKED, parked=False, generation=5), None, id="form-in-it"),
        pytest.param(FORM, replace(PARKED, generation=5), None, id="form-has-left-it-again"),
        pytest.param(FORM, replace(PARKED, life=3), None, id="form-another-life-of-a-members-slot"),
        pytest.param(FORM, replace(PARKED, slot=2), None, id="form-newcomer-waits"),
        pytest.param(FORM, replace(PARKED, slot=7), ElasticSlotAction.LEAVE, id="form-not-wanted"),
        pytest.param(FORM, replace(INSIDE, slot=2), ElasticSlotAction.CHANGE, id="form-still-in-the-former"),
        pytest.param(FORM, replace(ENDED, generation=5), None, id="form-member-that-ended"),
        pytest.param(FORM, replace(ENDED, slot=2), ElasticSlotAction.START, id="form-newcomer-that-ended"),
        pytest.param(STOP_ALL, NEVER, None, id="restart-nothing-before-form"),
        pytest.param(STOP_ALL, INSIDE, ElasticSlotAction.TERMINATE, id="restart-runs"),
        pytest.param(START_ALL, ENDED, ElasticSlotAction.START, id="restart-member"),
        pytest.param(START_ALL, replace(ENDED, slot=2), None, id="restart-no-member"),
        pytest.param(START_ALL, replace(ENDED, generation=5), None, id="restart-member-that-ended"),
        pytest.param(START_ALL, replace(INSIDE, generation=5), None, id="restart-member-runs"),
        pytest.param(START_ALL, INSIDE, ElasticSlotAction.TERMINATE, id="restart-left-from-the-former"),
    ],
)
def test_the_next_step(order: ElasticSlotOrder, slot: OwnSlot, step: ElasticSlotAction | None) -> None:
    """There is one action at a time, and none if the order is fulfilled or another process has to act."""
    assert next_slot_action(order, slot, DEADLINES, now=111) is step


@pytest.mark.parametrize(
    ("order", "slot", "at"),
    [
        pytest.param(URGENT, replace(INSIDE, last_change=(5, True)), 160, id="does-not-leave-a-broken-world"),
        pytest.param(FORM, replace(INSIDE, slot=2, last_change=(5, True)), 170, id="does-not-leave-the-former"),
        pytest.param(URGENT, replace(INSIDE, last_change=(5, True), stopped_since=60), 105, id="cannot-leave"),
        pytest.param(FORM, replace(COMING, stopped_since=120), 125, id="is-stopped-before-it-is-ready"),
        pytest.param(FORM, replace(INSIDE, generation=5, stopped_since=120), 180, id="is-stopped-in-its-world"),
        pytest.param(FORM, replace(PARKED, slot=2, stopped_since=120), 180, id="is-stopped-while-it-waits"),
        pytest.param(
            PREPARE,
            replace(INSIDE, last_change=(5, False), stopped_since=120),
            180,
            id="is-stopped-before-its-next-commit",
        ),
        pytest.param(PREPARE, replace(PARKED, slot=7, left_since=120), 180, id="does-not-end-when-told"),
        pytest.param(PREPARE, replace(COMING, slot=7), 160, id="is-not-wanted-before-it-is-ready"),
    ],
)
def test_who_does_not_leave_is_killed(order: ElasticSlotOrder, slot: OwnSlot, at: float) -> None:
    """A process is killed exactly when its time is over."""
    assert next_slot_action(order, slot, DEADLINES, now=at - 0.1) is None
    assert next_slot_action(order, slot, DEADLINES, now=at) is ElasticSlotAction.KILL


@pytest.mark.parametrize(
    ("order", "slot"),
    [
        pytest.param(PREPARE, replace(INSIDE, last_change=(5, False)), id="waits-for-its-next-commit"),
        pytest.param(PREPARE, COMING, id="starts"),
        pytest.param(PREPARE, PARKED, id="parked"),
        pytest.param(FORM, replace(INSIDE, generation=5), id="works"),
    ],
)
def test_who_is_never_killed(order: ElasticSlotOrder, slot: OwnSlot) -> None:
    """A process that is wanted, and does not delay a generation that has lost a member, is never killed."""
    assert next_slot_action(order, slot, DEADLINES, now=1e9) is None


def test_an_order_that_comes_again_keeps_its_times() -> None:
    """An agent that registers again gets its order again; deadlines do not restart."""
    first = current_slot_order(Prepare(5, (1,), urgent=True), None, restart=False, now=100)
    assert current_slot_order(Prepare(5, (1,), urgent=True), first, restart=False, now=130) == first
    later = current_slot_order(Prepare(6, (1,), urgent=True), first, restart=False, now=140)
    assert (later.since, later.urgent_since) == (140, 140)


def test_a_change_that_becomes_urgent() -> None:
    """The deadline starts when the change becomes urgent."""
    calm = current_slot_order(Prepare(5, (1,)), None, restart=False, now=100)
    assert calm.urgent_since is None
    assert current_slot_order(Prepare(5, (1,), urgent=True), calm, restart=False, now=130).urgent_since == 130
