"""Messages between agent and launcher arrive unchanged."""

from dataclasses import replace
from typing import Any

import pytest

from ringtrain.shared.gen import coordinator_pb2 as pb
from ringtrain.shared.messages import from_message, message_fields
from ringtrain_job.control.model import (
    AgentState,
    Failure,
    Form,
    Member,
    Order,
    Outcome,
    Prepare,
    RankPhase,
    RankState,
    Reason,
    Registration,
    Release,
    Start,
    Stop,
    Verdict,
    World,
)
from ringtrain_job.control.wire import deflated_order, order_from_message, order_to_message

RANKS = (
    RankState(1, RankPhase.FAILED, 0, "SIGTERM", 2, 0.5, ("a", "b"), Reason.NO_MPI_INIT, "why"),
    RankState(2, RankPhase.WAITING),
    RankState(
        3, RankPhase.RUNNING, life=2, formation=5, parked=True, committed=2**33, lost_steps=1, joined=True, adopted=4
    ),
)
FORMED = World(2, ("a:1", "b:1"), ("a:2", "b:2"), "a", 3, 4, (Member(3, 1), Member(0, 2)))
FAILED = Verdict(
    Outcome.FAILED, 3, 1, Failure(Reason.AGENT_LOST, "why", 0, "pod", "node", 0, "SIGKILL", ("x",), "of pod")
)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (AgentState((), drained=True, leaving="SIGTERM", order=2**40), pb.SyncRequest),
        (
            Registration("uid", 1, 2, 3, "i", "p", "n", "a", 1, (1,), (2,), 5, RANKS, 6, 7, "of p"),
            pb.RegisterRequest,
        ),
        (FAILED, pb.Verdict),
        (Verdict(Outcome.FAILED, 3, 1, Failure(Reason.NOT_ASSEMBLED, "why")), pb.Verdict),
        (Verdict(Outcome.SUCCEEDED, 0), pb.Verdict),
    ],
    ids=["state", "registration", "rank-failed", "no-rank-to-blame", "succeeded"],
)
def test_a_value_there_and_back(value: Any, message: Any) -> None:
    """A value of 0 or "" differs from a missing value."""
    sent = message(**message_fields(value)).SerializeToString()
    assert from_message(type(value), message.FromString(sent)) == value


@pytest.mark.parametrize(
    "order",
    [
        Start(World(1, ("a:1",), ("a:2",), "a", 3)),
        Prepare(4, (0, 3), urgent=True, number=9),
        Prepare(5, (), restart=True),
        Form(FORMED, (0, 3, 5), 10),
        Stop(FAILED),
        Release(FAILED),
    ],
    ids=["start", "prepare-urgent", "prepare-restart", "form", "stop", "release"],
)
def test_an_order_there_and_back(order: Order) -> None:
    """Each kind of order is read as that kind."""
    assert order_from_message(pb.Order.FromString(order_to_message(order).SerializeToString())) == order


@pytest.mark.parametrize(
    "order",
    [Start(replace(FORMED, tf_addresses=("a:2", "c:2"))), Form(FORMED, (0, 3, 5), 10), Stop(FAILED)],
    ids=["start", "form", "stop"],
)
def test_a_compressed_order_there_and_back(order: Order) -> None:
    """Hosts that are in it once are the ranks' again, and other orders stay what they are."""
    sent = deflated_order(order_to_message(order)).SerializeToString()
    assert order_from_message(pb.Order.FromString(sent)) == order


def test_a_word_that_does_not_exist() -> None:
    """An unknown phase is an error, not a waiting rank."""
    with pytest.raises(ValueError, match="'Asleep' is not a valid RankPhase"):
        from_message(RankState, pb.RankState(phase="Asleep"))


def test_generations_tell_worlds_apart() -> None:
    """A generation's number is unique among all attempts; a world without generations has its attempt's number."""
    assert FORMED.generation == 2_000_004
    assert replace(FORMED, attempt=2**31 - 1).generation < 2**31
    assert Start(World(7, ("a:1",), ("a:2",), "a", 3)).world.generation == 7
