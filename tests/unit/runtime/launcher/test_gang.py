"""The barrier: who may join, and what is known of those that did."""

from dataclasses import replace

import pytest
from support.small_job import Clock, environment

from ringtrain_job.control.model import AgentState, RankPhase, RankState, Refusal, Registration, Start, World
from ringtrain_job.launcher.config import LauncherConfig
from ringtrain_job.launcher.gang import Gang
from ringtrain_job.launcher.members import make_world

CONFIG = LauncherConfig.from_env(environment(2, 2))
ELASTIC = LauncherConfig.from_env(environment(2, 2, ELASTIC="Replace"))
MPI = LauncherConfig.from_env(environment(2, 2, BACKEND="mpi"))
WORLD = World(1, (), (), "h", 1)


def worker(index: int, instance: str = "first") -> Registration:
    return Registration(
        "uid-1", 1, index, 2, instance, f"pod-{index}", f"node-{index}", "fd00::7" if index else "10.0.0.7", 7360,
        (7400, 7401), (7500, 7501), 7390,
    )  # fmt: skip


def test_the_world_of_a_complete_gang() -> None:
    """Addresses by rank, brackets around IPv6, the master on worker 0."""
    gang = Gang(CONFIG, Clock())
    for index in (1, 0):
        assert gang.register(worker(index)) is None
    world = make_world(list(gang.registrations().values()))
    assert world.ring_addresses == ("10.0.0.7:7400", "10.0.0.7:7401", "[fd00::7]:7400", "[fd00::7]:7401")
    assert world.tf_addresses[3] == "[fd00::7]:7501"
    assert (world.master_address, world.master_port) == ("10.0.0.7", 7390)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"job_uid": "uid-2"}, "job uid is uid-2 at the worker, but uid-1 at the launcher"),
        ({"attempt": 2}, "attempt is 2 at the worker, but 1 at the launcher"),
        ({"slots": 4}, "slots per worker is 4 at the worker, but 2 at the launcher"),
        ({"worker_index": 2}, "worker index is 2; expected 0 to 1"),
    ],
    ids=["uid", "attempt", "slots", "index"],
)
def test_an_agent_that_was_told_something_else(change: dict[str, object], reason: str) -> None:
    """Refused for good, naming both values."""
    gang = Gang(CONFIG, Clock())
    assert gang.register(replace(worker(0), **change)) == Refusal(reason, misconfigured=True)  # type: ignore[arg-type]


def test_registering_again() -> None:
    """The same instance may; another only while the gang assembles and the first has left."""
    gang = Gang(CONFIG, Clock())
    assert gang.register(worker(0)) is None
    assert gang.register(worker(0)) is None
    assert gang.attach(0, "first")
    refusal = gang.register(worker(0, "second"))
    assert "worker 0 is already registered in attempt 1 from pod pod-0 at 10.0.0.7" in refusal.reason
    assert not refusal.misconfigured
    gang.detach(0, "first")
    assert gang.register(worker(0, "second")) is None
    assert not gang.sync(0, "first", AgentState(()))
    gang.give(Start(WORLD))
    assert gang.register(worker(0, "third")) is not None


def test_a_restarted_worker_proves_that_the_first_is_gone() -> None:
    """A disconnected agent counts as lost as soon as another comes in its place."""
    clock = Clock()
    gang = Gang(CONFIG, clock)
    gang.register(worker(1))
    gang.give(Start(WORLD))
    gang.register(worker(1, "second"))
    assert gang.view().workers[1].silent_since == clock.now - CONFIG.lost_after_s


def test_silence_and_heartbeats() -> None:
    """An attached agent is heard of; one whose heartbeats end is not, though its stream seems open."""
    clock = Clock()
    gang = Gang(CONFIG, clock)
    gang.register(worker(0))
    gang.attach(0, "first")
    assert gang.view().workers[0].silent_since is None
    clock.now += CONFIG.lost_after_s
    assert gang.view().workers[0].silent_since == 0.0
    assert gang.sync(0, "first", AgentState(()))
    assert gang.view().workers[0].silent_since is None
    assert not gang.sync(0, "another", AgentState(()))


@pytest.mark.slow
def test_a_launcher_that_is_behind_loses_nobody() -> None:
    """While other agents connect, silent agents whose calls may have to wait do not count as lost, nor do agents that
    may be reconnecting."""
    clock, many = Clock(), replace(CONFIG, workers=4000)
    gang = Gang(many, clock)
    for index in range(3):
        gang.register(worker(index))
    gang.attach(1, "first")
    gang.attach(2, "first")
    gang.detach(2, "first")
    clock.now += many.silence_s
    gang.register(worker(3))
    assert [seen.silent_since for seen in gang.view().workers[:3]] == [None, None, clock.now]
    assert not gang.lost_workers()
    clock.now += many.silence_s
    assert gang.lost_workers() == {0, 1, 2, 3}


def test_nobody_waits_for_ever_for_one_that_is_silent() -> None:
    """The limit is valid even if other agents connect all the time."""
    clock, many = Clock(), replace(CONFIG, workers=4000)
    gang = Gang(many, clock)
    gang.register(worker(0))
    while clock.now < many.behind_s + many.lost_after_s:
        assert not gang.lost_workers()
        gang.register(worker(1))
        clock.now += many.lost_after_s / 2
    assert gang.lost_workers() == {0}


def test_slots_show_what_is_new_and_keep_the_rest() -> None:
    """Views of unchanged slots are the same objects; silence, orders and new states appear at once."""
    clock = Clock()
    gang = Gang(ELASTIC, clock)
    gang.vacancy_s = ELASTIC.vacancy_s
    for index in range(2):
        gang.register(worker(index))
        gang.attach(index, "first")
    before = gang.slots()
    gang.sync(1, "first", AgentState((RankState(2, RankPhase.RUNNING, life=1),), order=7))
    after = gang.slots()
    assert [after[slot] is before[slot] for slot in range(4)] == [True, True, False, False]
    assert (after[2].state.life, after[2].order, after[3].order) == (1, 7, 7)
    gang.detach(0, "first")
    assert [gang.slots()[slot].silent for slot in range(4)] == [True, True, False, False]
    clock.now += ELASTIC.lost_after_s
    assert gang.slots()[0].lost
    assert not after[0].lost
    gang.register(worker(0, "second"))
    assert gang.slots()[0].instance == "second"


def test_exits_are_dated_when_they_are_first_seen() -> None:
    """The agent reports the age of an exit; repeated reports do not change its time."""
    clock = Clock()
    gang = Gang(CONFIG, clock)
    gang.register(worker(0))
    failed = RankState(1, RankPhase.FAILED, 1, exited_ago_s=2.0)
    gang.sync(0, "first", AgentState((failed,)))
    clock.now += 50
    gang.sync(0, "first", AgentState((replace(failed, exited_ago_s=52.5),)))
    view = gang.view()
    assert [exit.at for exit in view.exits] == [clock.now - 52]
    assert [state.phase.value for state in view.ranks] == ["Waiting", "Failed", "Waiting", "Waiting"]


def test_a_view_shows_what_is_new_and_keeps_the_rest() -> None:
    """The view is correct after any earlier one: ranks start and end, and a worker is replaced."""
    gang = Gang(ELASTIC, Clock())
    gang.vacancy_s = ELASTIC.vacancy_s
    for index in range(2):
        gang.register(worker(index))
    gang.sync(1, "first", AgentState((RankState(2, RankPhase.RUNNING), RankState(3, RankPhase.RUNNING))))
    before = gang.view()
    assert [state.phase.value for state in before.ranks] == ["Waiting", "Waiting", "Running", "Running"]
    gang.sync(0, "first", AgentState((RankState(0, RankPhase.RUNNING), RankState(1, RankPhase.SUCCEEDED, 0))))
    view = gang.view()
    assert [state.phase.value for state in view.ranks] == ["Running", "Succeeded", "Running", "Running"]
    assert [exit.state.rank for exit in view.exits] == [1]
    assert view.ranks[2:] == before.ranks[2:]
    assert gang.register(worker(0, "second")) is None
    view = gang.view()
    assert [state.phase.value for state in view.ranks] == ["Waiting", "Waiting", "Running", "Running"]
    assert list(view.exits) == []


def ended(phase: RankPhase, code: int, order: int) -> AgentState:
    """Return the state of an agent whose rank 1 has ended."""
    return AgentState((RankState(1, phase, code, exit_order=order),))


def test_a_rank_that_runs_again_and_fails() -> None:
    """A script's second mpirun: its ranks are other processes, whose ends count."""
    gang = Gang(MPI, Clock())
    gang.ranks_move = True
    gang.register(worker(0))
    gang.sync(0, "first", ended(RankPhase.SUCCEEDED, 0, 2))
    gang.sync(0, "first", ended(RankPhase.FAILED, 3, 4))
    assert [exit.state.exit_code for exit in gang.view().exits] == [3]


def test_a_rank_that_failed_and_runs_again() -> None:
    """Its failure stays, even if a script starts another program afterwards that succeeds."""
    gang = Gang(MPI, Clock())
    gang.ranks_move = True
    gang.register(worker(0))
    gang.sync(0, "first", ended(RankPhase.FAILED, 3, 1))
    gang.sync(0, "first", ended(RankPhase.SUCCEEDED, 0, 2))
    view = gang.view()
    assert (view.ranks[1].phase, [exit.state.exit_code for exit in view.exits]) == (RankPhase.SUCCEEDED, [3])


def test_a_rank_that_runs_again_on_another_worker() -> None:
    """A script's second mpirun may map ranks as the first one did not; where a rank was seen last, it is."""
    gang = Gang(MPI, Clock())
    gang.ranks_move = True
    for index in range(2):
        gang.register(worker(index))
    first = AgentState((RankState(2, RankPhase.WAITING), RankState(1, RankPhase.SUCCEEDED, 0, exit_order=1)))
    gang.sync(1, "first", first)
    assert gang.view().worker_of(1).index == 1
    gang.sync(0, "first", ended(RankPhase.FAILED, 3, 1))
    gang.sync(1, "first", first)
    view = gang.view()
    assert (view.ranks[1].phase, view.worker_of(1).index) == (RankPhase.FAILED, 0)


def test_seldom_heartbeats() -> None:
    """In a large gang agents call rarely: a longer silence is allowed, except after the end of a connection."""
    clock, config = Clock(), replace(CONFIG, workers=10_000)
    gang = Gang(config, clock)
    for index in range(2):
        gang.register(worker(index))
        gang.attach(index, "first")
    clock.now += config.lost_after_s
    assert gang.lost_workers() == frozenset()
    gang.detach(0, "first")
    clock.now += config.lost_after_s
    assert gang.lost_workers() == {0}
    clock.now += config.silence_s
    assert gang.lost_workers() == {0, 1}
    assert 3 * gang.heartbeat_s <= config.silence_s < config.timeout_s
