"""Worlds that are no mesh, as real processes: each rank watches two others, and a verdict is passed on."""

import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest
from support.certificates import JobAuthority
from support.elastic_agent import started_slots
from support.elastic_steps import add_up_steps
from support.ranks import Ranks, ask, run_ranks, started_ranks, tell

import ringtrain as rt
from ring.functions import worlds_in_turn
from ring.leftovers import leftovers
from ringtrain._core.process_groups import context
from ringtrain._core.world.failure_state import PeerClosed, WorldFailureState
from ringtrain._core.world.neighbours import MESH_MOST

SIZE = MESH_MOST + 4
TIMEOUT_S = 20.0
ENV = {"RINGTRAIN_TRANSPORT": "grpc", "RINGTRAIN_TIMEOUT": str(TIMEOUT_S)}

CALM = {"RINGTRAIN_TRANSPORT": "grpc"}  # nobody is lost


def _error_of_barrier() -> str:
    try:
        rt.barrier()
    except rt.errors.PeerLost as error:
        return str(error)
    return "no error"


def _failure_state() -> WorldFailureState:
    return context.current()._member.failure_state


def _wait_outside_of_collectives() -> tuple[str, float, list[str]]:
    """Wait for a loss outside of collectives. Return its error, the time of detection and the world's leftovers."""
    rt.init()
    rt.barrier()
    tell("ready")
    assert _failure_state().wait(60), "no verdict came"
    heard = time.monotonic()
    message = _error_of_barrier()
    rt.shutdown()
    return message, heard, leftovers()


def _all_ready(ranks: Ranks, number: int = SIZE) -> None:
    for rank in range(number):
        assert ranks.message(rank) == "ready"


LOST = {
    "one": (7,),
    "two-adjacent": (7, 8),
    "two-apart": (3, 15),
    "three-adjacent": (18, 19, 0),
    "a-pod": tuple(range(4, 12)),
}


# Two adjacent ones that are stopped are among the three, two apart hear of each other as one does; and a pod that is
# killed has more than three in a row.
HEARD = [(name, signal.SIGKILL) for name in ("one", "two-adjacent", "two-apart", "a-pod")]
HEARD += [(name, signal.SIGSTOP) for name in ("one", "three-adjacent", "a-pod")]


@pytest.mark.parametrize(("lost", "number"), HEARD, ids=[f"{name}-{number.name}" for name, number in HEARD])
def test_all_that_live_hear_of_the_dead(lost: str, number: signal.Signals) -> None:
    """Within the timeout, whoever watches them, also ranks that wait for nobody; each names one of the dead."""
    dead = LOST[lost]
    living = [rank for rank in range(SIZE) if rank not in dead]
    with started_ranks(_wait_outside_of_collectives, SIZE, env=ENV) as ranks:
        _all_ready(ranks)
        began = time.monotonic()
        for rank in dead:
            ranks.signal(rank, number)
        outcomes = ranks.outcomes(ranks=living)
    for outcome in outcomes:
        assert outcome.ok, outcome
        message, heard, left = outcome.value
        named = re.match(r"rank (\d+) \(127\.0\.0\.1:\d+\) was lost", message)
        assert named is not None, outcome
        assert int(named[1]) in dead, outcome
        assert heard - began < TIMEOUT_S, outcome
        assert not left, outcome


def _leave_early(leavers: tuple[int, ...]) -> str:
    rt.init()
    rt.barrier()
    if rt.rank() in leavers:
        rt.shutdown()
        tell("ready")
        return "left"
    tell("ready")
    ask()
    return _error_of_barrier()


@pytest.mark.parametrize("leavers", [(7,), (6, 7, 8, 9)], ids=["one", "neighbours"])
def test_a_rank_that_left_in_good_order_is_told_from_a_lost_one(leavers: tuple[int, ...]) -> None:
    """Also by ranks that do not watch it, and where those that watched it have left as well. Nobody fails before
    someone needs it."""
    staying = [rank for rank in range(SIZE) if rank not in leavers]
    with started_ranks(_leave_early, SIZE, leavers, env=ENV) as ranks:
        _all_ready(ranks)
        assert all(outcome.ok for outcome in ranks.outcomes(ranks=list(leavers)))
        for rank in staying:
            ranks.answer(rank)
        for outcome in ranks.outcomes(ranks=staying):
            assert outcome.ok, outcome
            assert re.match(r"rank [6-9] has shut down, and rank \d+ needs it for barrier", outcome.value), outcome


def _stay_behind(leaver: int) -> bool:
    """Whether this rank stays when `leaver` has left."""
    rt.init()
    rt.barrier()
    stays = rt.rank() != leaver
    if not stays:
        rt.shutdown()
    tell("ready")
    if stays:
        ask()
    return stays


def _errors_without(leaver: int, function: Callable[[int], str]) -> list[str]:
    """Return the results of `function(leaver)` on the ranks that stay, once `leaver` has left."""
    staying = [rank for rank in range(SIZE) if rank != leaver]
    with started_ranks(function, SIZE, leaver, env=ENV) as ranks:
        _all_ready(ranks)
        assert ranks.outcomes(ranks=[leaver])[0].ok
        for rank in staying:
            ranks.answer(rank)
        outcomes = ranks.outcomes(ranks=staying)
    assert all(outcome.ok for outcome in outcomes), outcomes
    return [outcome.value for outcome in outcomes]


def _hear_of_a_broken_watch(leaver: int) -> str:
    if not _stay_behind(leaver):
        return "left"
    context.current()._member.monitor.report(PeerClosed(leaver, "connection closed", None))
    return _error_of_barrier()


def test_a_watch_that_broke_before_the_farewell_came_fails_nobody() -> None:
    """Those that got the farewell are asked: it is the barrier that then lacks a rank."""
    for message in _errors_without(7, _hear_of_a_broken_watch):
        assert re.match(r"rank 7 has shut down, and rank \d+ needs it for barrier", message), message


def _leave_or_be_watched(leavers: tuple[int, ...], victim: int, watchers: tuple[int, ...]) -> str:
    """Shut down as a leaver. As `victim`, say when each of `watchers` has sent a short request and an open one."""
    rt.init()
    rt.barrier()
    handshake, requests = context.current()._member._handshake, SimpleQueue[int]()
    record = handshake.watched_by

    def watched_by(rank: int) -> None:
        record(rank)
        requests.put(rank)

    if rt.rank() == victim:
        handshake.watched_by = watched_by  # type: ignore[method-assign]
    tell("ready")
    ask()
    if rt.rank() in leavers:
        rt.shutdown()
        return "left"
    if rt.rank() == victim:
        seen = Counter[int]()
        while any(seen[rank] < 2 for rank in watchers):
            seen[requests.get(timeout=60)] += 1
        tell("watched")
    assert _failure_state().wait(60), "no verdict came"
    return _error_of_barrier()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_rank_is_watched_after_those_that_watched_it_have_left(number: signal.Signals) -> None:
    """The next ones before it watch it then: all others hear of its end, and wait for nobody."""
    leavers, victim = (7, 8), 9
    staying = [rank for rank in range(SIZE) if rank not in (*leavers, victim)]
    with started_ranks(_leave_or_be_watched, SIZE, leavers, victim, (5, 6), env=ENV) as ranks:
        _all_ready(ranks)
        for rank in (*leavers, victim, *staying):
            ranks.answer(rank)
        assert all(outcome.ok for outcome in ranks.outcomes(ranks=list(leavers)))
        assert ranks.message(victim) == "watched"
        ranks.signal(victim, number)
        for outcome in ranks.outcomes(ranks=staying):
            assert outcome.ok, outcome
            assert re.match(r"rank 9 \(.*\) was lost", outcome.value), outcome


def _take_from_one_that_waits(leaver: int) -> str:
    rt.init()
    rt.barrier()
    if rt.rank() == leaver:
        rt.shutdown()
        return "left"
    try:
        rt.broadcast(np.ones(3), 0)
    except rt.errors.PeerLost as error:
        return str(error)
    assert _failure_state().wait(60), "no verdict came"
    return _error_of_barrier()


def test_who_waits_until_all_have_taken_hears_that_one_has_left() -> None:
    """Rank 0 needs nothing of rank 7, and does not watch it: it looks for those that keep it waiting."""
    outcomes = run_ranks(_take_from_one_that_waits, SIZE, 7, env=ENV)
    assert outcomes.pop(7) == "left"
    for message in outcomes:
        assert re.match(r"rank 7 has shut down, and rank \d+ needs it for broadcast", message), outcomes


def _wait_for_a_late_one(leaver: int) -> str:
    if not _stay_behind(leaver):
        return "left"
    context.current()._member._lateness._first_s = 0.1
    if rt.rank() != 0:  # this rank does not come to the barrier
        assert _failure_state().wait(60), "no verdict came"
    return _error_of_barrier()


def test_who_waits_for_late_ranks_looks_for_those_that_have_left() -> None:
    """Rank 0 is alone in the barrier, needs rank 4 as well, and does not watch it."""
    for message in _errors_without(4, _wait_for_a_late_one):
        assert message.startswith("rank 4 has shut down, and rank 0 needs it for barrier"), message


ONLY_READ = 8  # rank 0 reads from it in a barrier, does not watch it, and has nothing that it takes


def _wait_in_a_barrier() -> tuple[str, float]:
    rt.init()
    rt.barrier()
    tell("ready")
    if rt.rank() != 0:  # all others are late
        assert _failure_state().wait(60), "no verdict came"
    return _error_of_barrier(), time.monotonic()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_who_waits_for_late_ranks_hears_of_the_dead_that_it_only_reads_from(number: signal.Signals) -> None:
    """Within the timeout, from those that watch it: its own stream to it is not read before the late ones come."""
    living = [rank for rank in range(SIZE) if rank != ONLY_READ]
    with started_ranks(_wait_in_a_barrier, SIZE, env=ENV) as ranks:
        _all_ready(ranks)
        began = time.monotonic()
        ranks.signal(ONLY_READ, number)
        for outcome in ranks.outcomes(ranks=living):
            assert outcome.ok, outcome
            message, heard = outcome.value
            assert re.match(rf"rank {ONLY_READ} \(.*\) was lost", message), outcome
            assert heard - began < TIMEOUT_S, outcome


def _come_to_a_barrier() -> str:
    rt.init()
    rt.barrier()
    if rt.rank() == ONLY_READ:
        rt.shutdown()
        return "left"
    tell("ready")
    ask()
    tell("comes")
    return _error_of_barrier()


def test_who_waits_for_late_ranks_hears_of_one_that_left_when_they_come() -> None:
    """Of a rank from which it only reads, and which shut down in good order."""
    staying = [rank for rank in range(SIZE) if rank != ONLY_READ]
    with started_ranks(_come_to_a_barrier, SIZE, env=ENV) as ranks:
        assert ranks.outcomes(ranks=[ONLY_READ])[0].ok
        for rank in staying:
            assert ranks.message(rank) == "ready"
        ranks.answer(0)
        assert ranks.message(0) == "comes"
        for rank in staying[1:]:
            ranks.answer(rank)
        for outcome in ranks.outcomes(ranks=staying):
            assert outcome.ok, outcome
            assert re.match(rf"rank {ONLY_READ} has shut down, and rank \d+ needs it for barrier", outcome.value)


def test_worlds_can_follow_each_other_at_once() -> None:
    """Some leave as soon as they have met all, and are in the next world while others still leave this one."""
    sums = [float(SIZE * round_) for round_ in range(1, 4, 2)]
    assert run_ranks(worlds_in_turn, SIZE, 4, env=CALM) == [sums] * SIZE


def _fail_and_meet_again(rounds: int) -> list[str]:
    told = []
    for round_ in range(rounds):
        rt.init()
        try:
            rt.barrier()  # a rank that still meets others would fail in init
            rt.allreduce(np.ones(1 + (rt.rank() == round_)))
        except rt.errors.MismatchError as error:
            told.append(type(error).__name__)
        rt.shutdown()
    rt.init()
    told.append(str(rt.allreduce(1.0, rt.Sum)))
    rt.shutdown()
    return told


def test_a_verdict_does_not_end_the_next_world() -> None:
    """A verdict still goes round when the first ranks that heard it meet again: the world of the same processes,
    addresses and token that follows is not ended by it."""
    told = run_ranks(_fail_and_meet_again, SIZE, 3, env=CALM | {"RINGTRAIN_TOKEN": "secret"})
    assert told == [["MismatchError"] * 3 + [f"{SIZE}.0"]] * SIZE


def test_ranks_that_encrypt_hear_of_the_dead_as_well(tmp_path: Path) -> None:
    """Connections to those that pass a verdict on are made when it has to be: with certificates."""
    dead = LOST["two-adjacent"]
    secret = JobAuthority("uid-1").secret_dir(tmp_path / "rank", "worker")
    tls = {
        "RINGTRAIN_ENCRYPT": "tensors", "RINGTRAIN_SECRET_DIR": str(secret), "RINGTRAIN_JOB_UID": "uid-1",
        "RINGTRAIN_TOKEN_FILE": str(secret / "token"),
    }  # fmt: skip
    with started_ranks(_wait_outside_of_collectives, SIZE, env=ENV | tls) as ranks:
        _all_ready(ranks)
        for rank in dead:
            ranks.signal(rank, signal.SIGKILL)
        for outcome in ranks.outcomes(ranks=[rank for rank in range(SIZE) if rank not in dead]):
            assert outcome.ok, outcome
            message, _, left = outcome.value
            assert re.match(r"rank [78] \(127\.0\.0\.1:\d+\) was lost", message), outcome
            assert not left, outcome


def test_an_elastic_world_of_many_is_formed_again_when_ranks_are_lost() -> None:
    """Two neighbours are killed in mid step and replaced: no step counts twice, no survivor ends."""
    with started_slots(add_up_steps, SIZE, 6, (4,), env=CALM) as slots:
        assert slots.formed() == [4] * SIZE
        slots.kill(7, urgent=False)
        slots.kill(8)
        slots.start(7)
        slots.start(8)
        slots.go_on(*(slot for slot in range(SIZE) if slot not in (7, 8)))
        assert slots.await_ready(0)["lost_steps"] == 1
        assert slots.formed() == [4] * SIZE
        slots.go_on(*range(SIZE))
        results = slots.results()
    for result in results.values():
        assert (result["weights"], result["sizes"]) == ([6.0], [SIZE, SIZE])


def test_an_elastic_world_becomes_a_mesh_and_none_again() -> None:
    """From more ranks than watch each other to as many, and back."""
    with started_slots(add_up_steps, MESH_MOST + 1, 9, (2, 4, 6), env=CALM) as slots:
        slots.form()
        everyone, leaver, others = range(MESH_MOST + 1), MESH_MOST, range(MESH_MOST)
        assert [slots.message(slot) for slot in everyone] == [2] * len(everyone)
        slots.tell_change()
        slots.go_on(*everyone)
        assert slots.leave(leaver).error == "SystemExit: 0"
        assert slots.formed() == [4] * len(others)
        slots.start(leaver)
        slots.tell_change()
        slots.go_on(*others)
        assert slots.await_ready(0)["lost_steps"] == 0
        assert slots.formed() == [6] * len(everyone)
        slots.go_on(*everyone)
        results = slots.results()
    for slot in others:
        assert results[slot]["weights"] == [9.0]
        assert results[slot]["sizes"] == [len(everyone), MESH_MOST, len(everyone)]
