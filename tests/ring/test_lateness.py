"""A rank that is busy is waited for and told of; one that is silent is lost. Each has a timeout of its own."""

import ctypes
import logging
import signal
import time
from collections.abc import Sequence
from functools import partial
from random import Random

import numpy as np
import pytest
from support.ranks import run_ranks, started_ranks, tell

import ringtrain as rt
from ringtrain._core.process_groups.context import current
from ringtrain._core.wire.signature import WireSignature, WireTensorSignature
from ringtrain._core.world.failure_state import WorldFailureState
from ringtrain._core.world.lateness import WorldLateness
from ringtrain._core.world.offers import BegunCollective, WorldOfferTable
from ringtrain._core.world.ring_config import RingConfig

OVER = pytest.mark.parametrize("transport", ["grpc", "auto"])
TIMEOUT_S = 3.0


def _hold_the_interpreter() -> float:
    rt.init()
    rt.barrier()
    if rt.rank() == 1:  # no other thread of the process runs Python meanwhile
        ctypes.PyDLL(None).sleep(int(2 * TIMEOUT_S))
    return float(rt.allreduce(1.0, rt.Sum))


@OVER
def test_a_rank_that_holds_the_interpreter_is_waited_for(transport: str) -> None:
    """For twice the timeout only gRPC's own threads answer, and nobody takes the rank for lost."""
    env = {"RINGTRAIN_TRANSPORT": transport, "RINGTRAIN_TIMEOUT": str(TIMEOUT_S)}
    assert run_ranks(_hold_the_interpreter, 2, env=env) == [2.0, 2.0]


def _wait_for_the_stopped() -> tuple[str, float] | None:
    rt.init()
    rt.barrier()
    tell("ready")
    if rt.rank() == 1:
        signal.pause()
    began = time.monotonic()
    try:
        rt.barrier()
    except rt.errors.PeerLost as error:
        return str(error), time.monotonic() - began
    return None


@OVER
def test_a_stopped_rank_is_lost_within_the_timeout(transport: str) -> None:
    """SIGSTOP: nothing of the process answers, and the stall timeout of ten minutes does not matter."""
    env = {"RINGTRAIN_TRANSPORT": transport, "RINGTRAIN_TIMEOUT": "20"}
    with started_ranks(_wait_for_the_stopped, 2, env=env) as ranks:
        for rank in range(2):
            assert ranks.message(rank) == "ready"
        ranks.signal(1, signal.SIGSTOP)
        (waited,) = ranks.outcomes(ranks=[0])
    message, seconds = waited.value
    assert message.startswith("rank 1 ")
    assert seconds <= 20.0


def _warning(offers: WorldOfferTable, answers: dict[int, object], caplog: pytest.LogCaptureFixture) -> str:
    """Return the warning that rank 1 of 4 logs while it waits; empty if it has checked twice and logs none."""
    ring = RingConfig(1, 4, ("a:1",) * 4)
    looks = []

    def statuses(peers: Sequence[int]) -> dict[int, object]:
        looks.append(tuple(peers))
        return answers

    lateness = WorldLateness(ring, offers, statuses, lambda key: None, first_s=0.05)
    with caplog.at_level(logging.WARNING, "ringtrain"):
        lateness.start()
        end = time.monotonic() + 60
        while not caplog.messages and len(looks) < 2 and time.monotonic() < end:
            lateness._stopped.wait(0.01)
        lateness.stop()
    return caplog.messages[0] if caplog.messages else ""


def waiting_offers(others: tuple[int, ...] = (0, 2, 3)) -> WorldOfferTable:
    offers = WorldOfferTable(1, WorldFailureState())
    offers.begin((0, 6), WireSignature("barrier"), others)
    offers.end((0, 6))
    offers.begin((0, 7), WireSignature("allreduce", (WireTensorSignature("conv1.weight", "float32", (3,)),)), others)
    return offers


def status(reached: int, activity: str = "") -> dict[str, object]:
    return {"reached": {"0": reached}, "activity": activity, "failure": None}


def test_who_waits_names_the_late_ranks_the_tensor_and_what_they_last_did(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One that answers says itself what it did; of one that is too busy the last common collective is known."""
    answers = {2: status(6, "last did barrier #6, which it ended 31 s ago"), 3: status(7)}
    text = _warning(waiting_offers(), answers, caplog)
    assert 'in allreduce #7 "conv1.weight" for rank(s) 0, 2, which are connected but late: rank 0 does not' in text
    assert "it has been in barrier; rank 2 last did barrier #6, which it ended 31 s ago." in text
    assert "After 600 s (RINGTRAIN_STALL_TIMEOUT) the world ends" in text


def test_in_a_large_set_ranks_ask_those_near_them(caplog: pytest.LogCaptureFixture) -> None:
    """If all asked all, a pause of half a minute would cost the square of the ranks. Some say what they do."""
    others = (0, *range(2, 1000))
    text = _warning(waiting_offers(others), {rank: status(6, "last did that") for rank in others}, caplog)
    named = "0, 2, 3, 5, 9, 17, 33, 65 and 12 more (of 20 ranks asked)"
    assert f"for rank(s) {named}, which are connected but late: rank 0 last did that;" in text
    assert "rank 65 last did that. After" in text


def _of(answers: dict[int, object], peers: Sequence[int]) -> dict[int, object]:
    return {peer: answers[peer] for peer in peers}


@pytest.mark.parametrize("size", [17, 64, 1000])
@pytest.mark.parametrize("seed", range(3))
def test_of_a_large_set_that_waits_somebody_says_it(size: int, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever is late, alone or with many: at least one rank says it, and of one late rank no more than one."""
    random = Random(f"{size} {seed}")
    for late in (random.sample(range(size), 1), random.sample(range(size), size // 3), range(1, size)):
        answers = {rank: status(6 if rank in late else 7, "") for rank in range(size)}
        caplog.clear()
        with caplog.at_level(logging.WARNING, "ringtrain"):
            for rank in set(range(size)).difference(late):
                offers = WorldOfferTable(rank, WorldFailureState())
                lateness = WorldLateness(RingConfig(rank, size, ()), offers, partial(_of, answers), lambda key: None)
                others = tuple(peer for peer in range(size) if peer != rank)
                lateness._warn((0, 7), BegunCollective(7, WireSignature("barrier"), others, 0.0, None), 31.0)
        assert 1 <= len(caplog.messages) <= len(late)


def test_one_of_those_who_wait_says_it(caplog: pytest.LogCaptureFixture) -> None:
    """Rank 0 waits, too, and says it: rank 1 does not."""
    assert not _warning(waiting_offers(), {0: status(7), 2: status(6), 3: status(7)}, caplog)


def test_a_rank_says_what_it_does() -> None:
    """In words that follow its name: in a collective, after one, and before the first."""
    assert WorldOfferTable(0, WorldFailureState()).activity() == "has begun no collective"
    offers = waiting_offers()
    assert offers.activity() == 'is in allreduce #7 "conv1.weight" for 0 s'
    offers.end((0, 7))
    assert offers.activity() == 'last did allreduce #7 "conv1.weight", which it ended 0 s ago'


def test_collectives_that_name_no_tensors_say_what_they_are_about() -> None:
    """The queue of the framework adapters agrees on many tensors in one collective."""
    offers = WorldOfferTable(0, WorldFailureState())
    offers.describe(5, lambda: "'allreduce.conv1' and 3 more")
    assert offers.label((5, 2), WireSignature("agreement")) == "agreement #2 on 'allreduce.conv1' and 3 more"


@OVER
def test_the_stall_timeout_ends_the_wait(transport: str) -> None:
    """A rank that is late for longer is lost, and the message says what it last did and what decides."""
    env = {"RINGTRAIN_TRANSPORT": transport, "RINGTRAIN_STALL_TIMEOUT": "1"}
    for message in run_ranks(_never_come, 2, env=env):
        assert message.startswith('rank 1 has not reached allreduce #2 "loss", for which rank 0 waited 1')
        assert "last did barrier #1" in message
        assert "RINGTRAIN_STALL_TIMEOUT sets the limit" in message


def _never_come() -> str:
    rt.init()
    rt.barrier()
    if rt.rank() == 1:
        while current()._member.failure_state.failure is None:
            time.sleep(0.01)
    with pytest.raises(rt.errors.PeerLost) as caught:
        rt.allreduce(np.ones(2), name="loss")
    return str(caught.value)
