"""Changes of an elastic job's world, one case per test."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from support.elastic_world import LOST_AFTER, RULES, World

from ringtrain_job.control.model import Prepare, RankPhase
from ringtrain_job.launcher.elastic_end import AttemptEnd, Ruin
from ringtrain_job.launcher.generation import Formed
from ringtrain_job.launcher.generation_state import GenerationPhase, GenerationRules

SHRINKS = replace(RULES, shrinks=True)
RESTARTS = replace(RULES, restarts=True)


def running(rules: GenerationRules = RULES, workers: int = 3) -> World:
    """Return a job whose first generation is complete."""
    world = World(1, rules, asked=workers)
    world.prompt = True
    for worker in range(workers):
        world.start(worker)
    world.until(lambda: met(world))
    return world


@pytest.fixture
def world() -> World:
    """Return a job of three workers whose first generation is complete."""
    return running()


def met(world: World) -> bool:
    """Return whether all requested ranks have joined the generation."""
    ranks = [world.rank(process.slot) for process in world.state.members]
    return world.settled() and all(rank and rank.joined for rank in ranks)


def slots_of(world: World) -> list[int]:
    """Slots of the members, by rank."""
    return [process.slot for process in world.state.members]


def test_the_first_formation_has_all_that_are_asked_for(world: World) -> None:
    """Ranks are slots as long as nothing was lost."""
    assert slots_of(world) == [0, 1, 2, 3, 4, 5]
    assert [formed.generation for formed in world.formed] == [1]
    assert world.state.losses.recoveries == 0


def test_a_lost_rank_costs_one_formation_and_survivors_go_first(world: World) -> None:
    """Rank 0 is a process that has lived through it, and the world is as large as before."""
    world.kill(0)
    world.until(lambda: world.state.number == 2 and met(world))
    assert slots_of(world) == [1, 0, 2, 3, 4, 5]
    assert [(p.life, p.joined) for p in world.state.members if p.slot == 0] == [(2, 2)]
    world.step()
    assert world.state.losses.recoveries == 1
    assert world.state.losses.last_recovery_s is not None


def test_shrink_goes_on_with_those_that_live() -> None:
    """The next generation consists of the survivors; the replacement joins in the generation after it."""
    world = running(SHRINKS)
    world.lose(1)
    world.until(lambda: world.state.number == 2 and world.state.phase is GenerationPhase.RUNNING)
    assert slots_of(world) == [0, 1, 4, 5]
    world.start(1)
    world.until(lambda: met(world))
    assert world.state.number == 3
    assert slots_of(world) == [0, 1, 4, 5, 2, 3]


def test_replace_goes_on_smaller_when_nobody_comes_in_time(world: World) -> None:
    """After `replace_timeout_s` the generation is formed of the available slots."""
    world.lose(1)
    lost_at = world.now
    world.until(lambda: world.state.number == 2 and world.state.phase is GenerationPhase.RUNNING)
    assert slots_of(world) == [0, 1, 4, 5]
    assert world.now - lost_at >= RULES.replace_timeout_s


def test_too_few_for_too_long_is_the_end() -> None:
    """Below `min_ranks` the launcher waits, and not for ever."""
    world = running(replace(RULES, min_ranks=3), workers=2)
    world.lose(1)
    lost_at = world.now
    world.until(lambda: world.end is not None)
    assert world.end == AttemptEnd(Ruin.TOO_FEW)
    assert world.now - lost_at >= RULES.replace_timeout_s + RULES.start_timeout_s
    assert len(world.formed) == 1


def test_a_leaving_pod_costs_no_loss(world: World) -> None:
    """Ranks leave at their next commit, nothing counts as lost, and the pod's slots are not waited for."""
    world.agents[2].leaving = True
    world.until(lambda: world.state.number == 2 and world.state.phase is GenerationPhase.RUNNING, seconds=20)
    assert slots_of(world) == [0, 1, 2, 3]
    assert (world.state.times.lost_at, world.state.losses.recoveries) == (None, 0)
    world.lose(2)
    world.start(2)
    world.until(lambda: met(world))
    assert slots_of(world) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("leavers", [(1,), (0, 1), (1, 2), (0, 2), (0, 1, 2)], ids=str)
def test_no_member_that_leaves_is_sent_away_before_the_next_formation(world: World, leavers: tuple[int, ...]) -> None:
    """Its state may be needed, so its process runs until the others have formed a generation without it; at least one
    member stays."""
    world.until(lambda: _all_committed(world, 5))
    before = {process.slot: world.process(process.slot) for process in world.state.members}
    for worker in leavers:
        world.agents[worker].leaving = True
    while len(world.formed) < 2 and world.now < 100:
        world.step()
        assert all(rank.phase is RankPhase.RUNNING for rank in before.values())
    stay = {0, 1, 2} - set(leavers)
    expected = {slot for worker in stay for slot in (2 * worker, 2 * worker + 1)} or {0, 1}
    assert len(world.formed) == 2
    assert set(slots_of(world)) == expected


def test_a_leaver_that_dies_before_it_has_handed_over_keeps_the_other_leavers() -> None:
    """Only that member is lost: the others are members of the next generation, and leave after it."""
    world = running(SHRINKS, workers=4)
    world.asked = frozenset(range(4))
    world.step()
    assert not world.state.orders.urgent
    world.kill(7)
    world.until(lambda: len(world.formed) == 2)
    assert slots_of(world) == [0, 1, 2, 3, 4, 5, 6]
    world.until(lambda: met(world))
    assert slots_of(world) == [0, 1, 2, 3]
    assert [formed.generation for formed in world.formed] == [1, 3, 4]


def test_who_has_the_state_stays_until_a_newcomer_has_it() -> None:
    """The slots that are wanted are other ones, whose processes take their time."""
    world = running(replace(RULES, min_ranks=1), workers=1)
    world.asked = frozenset({2, 3})
    world.step(20)
    assert set(slots_of(world)) & {0, 1}
    world.start(1)
    world.until(lambda: len(world.formed) > 1 and bool(set(slots_of(world)) & {2, 3}))
    assert set(slots_of(world)) & {0, 1}, "newcomers alone have nothing to go on from"
    world.until(lambda: met(world))
    assert set(slots_of(world)) == {2, 3}


def test_a_drain_while_a_loss_is_made_good(world: World) -> None:
    """The pod that will end is a member of the next generation, which waits for no other pod, and transfers its state
    in it."""
    world.lose(2)
    world.until(lambda: world.state.phase is GenerationPhase.PREPARING)
    began = world.now
    world.agents[1].leaving = True
    world.until(lambda: len(world.formed) == 2)
    assert world.now - began < RULES.replace_timeout_s
    assert slots_of(world) == [0, 1, 2, 3]
    world.until(lambda: len(world.formed) == 3)
    assert slots_of(world) == [0, 1]


def _all_committed(world: World, step: int) -> bool:
    for process in world.state.members:
        world.process(process.slot).committed = step
    world.step()
    return world.view().progressed == step


def test_lost_steps_are_all_steps_where_nobody_is_left(world: World) -> None:
    """If all ranks with the state are lost, their committed steps count as lost, once."""
    world.until(lambda: _all_committed(world, 17))
    for _ in range(2):
        world.kill(*range(6))
        world.step()
        world.until(lambda: met(world))
    assert world.state.losses.steps == 17
    assert [formed.committed for formed in world.formed] == [0, 17, 17]


def test_newcomers_are_gathered_into_one_change() -> None:
    """Two pods that register within `join_delay_s` cause one generation."""
    world = running(workers=1)
    world.asked = frozenset(range(8))
    world.start(1)
    world.until(lambda: world.state.times.newcomer_at is not None)
    world.step()
    world.start(2)
    world.until(lambda: world.state.number == 2 and world.state.phase is GenerationPhase.RUNNING)
    assert slots_of(world) == [0, 1, 2, 3, 4, 5]


def test_a_newcomer_that_dies_while_joining_costs_nothing_else(world: World) -> None:
    """Its slot gets another process; the survivors' processes and the generation's number do not change."""
    world.kill(4)
    world.until(lambda: world.state.phase is GenerationPhase.PREPARING)
    for _ in range(4):
        world.until(lambda: bool((rank := world.rank(4)) and rank.phase is RankPhase.RUNNING))
        world.kill(4)
        world.step()
    world.until(lambda: met(world))
    assert world.state.number == 2
    assert {p.slot: p.life for p in world.state.members} == {0: 1, 1: 1, 2: 1, 3: 1, 4: 6, 5: 1}


def test_fewer_workers_are_asked_for(world: World) -> None:
    """The highest leave at their next commit."""
    world.asked = frozenset(range(4))
    world.until(lambda: met(world))
    assert slots_of(world) == [0, 1, 2, 3]
    world.until(lambda: (rank := world.rank(4)) is not None and rank.phase is RankPhase.STOPPED)


@pytest.mark.parametrize("way", [RULES, SHRINKS], ids=["replace", "shrink"])
def test_a_stopped_process_is_waited_for_until_its_agent_has_killed_it(way: GenerationRules) -> None:
    """No generation is formed while a stopped process, which may continue, is in the previous one."""
    world = running(way)
    world.hold(2)
    world.until(lambda: world.state.number == 2)
    world.step()
    assert world.state.phase is GenerationPhase.PREPARING
    world.until(lambda: world.state.phase is GenerationPhase.RUNNING)
    assert {p.slot: p.life for p in world.state.members}.get(2, 2) == 2


def test_an_agent_that_is_cut_off_counts_as_lost() -> None:
    """Its ranks cannot be members of the next generation, even if it connects again."""
    world = running(SHRINKS)
    world.agents[1].cut = True
    world.until(lambda: world.state.number == 2 and world.state.phase is GenerationPhase.RUNNING)
    assert slots_of(world) == [0, 1, 4, 5]
    world.agents[1].cut = False
    world.until(lambda: met(world))
    assert slots_of(world) == [0, 1, 4, 5, 2, 3]


def test_the_generation_limit() -> None:
    """The attempt ends at one generation above the limit."""
    world = running(replace(RULES, generation_limit=2))
    world.kill(0)
    world.until(lambda: met(world) and world.state.number == 2)
    world.kill(0)
    world.until(lambda: world.end is not None)
    assert world.end == AttemptEnd(Ruin.GENERATION_LIMIT)


def test_a_program_that_always_fails(world: World) -> None:
    """Three lives of a slot that end by an error of their own, without a step between, end the attempt."""
    for life in (1, 2, 3):
        world.until(lambda: met(world) or world.end is not None)
        assert world.process(3).life == life
        world.kill(3, code=1)
        world.step()
    world.until(lambda: world.end is not None)
    assert world.end == AttemptEnd(Ruin.OWN_ERROR, 3)


@pytest.mark.parametrize("way", [RULES, SHRINKS], ids=["replace", "shrink"])
def test_ranks_that_all_fail_end_the_attempt(way: GenerationRules) -> None:
    """An error of all ranks is an error of the program, and the attempt is not repeated."""
    world = running(way)
    world.kill(*range(6), code=1, tail=("KeyError: 'a typo of mine'",))
    world.until(lambda: world.end is not None)
    assert world.end == AttemptEnd(Ruin.ALL_FAILED)
    assert len(world.formed) == 1


def test_ranks_that_disagree_after_a_loss_begin_anew(world: World) -> None:
    """One rank had begun to receive the state of the lost ranks, the other starts anew: the next generation may
    succeed."""
    world.kill(*range(6), code=1, tail=("ringtrain.errors.MismatchError: collective #2: rank 0 called elastic state",))
    world.until(lambda: world.state.number == 2 and met(world))
    assert world.end is None


def test_ranks_that_are_all_killed_begin_anew(world: World) -> None:
    """There is no evidence of an error of the program."""
    world.kill(*range(6))
    world.until(lambda: world.state.number == 2 and met(world))
    assert world.end is None


def test_the_same_error_again_and_again_ends_a_job_that_restarts() -> None:
    """Steps are made each time, from the checkpoint on, and the job never comes further."""
    world = running(RESTARTS)
    for _ in range(3):
        world.until(lambda: met(world) or world.end is not None)
        for step in (10, 20):
            for slot in range(6):
                world.process(slot).committed = step
            world.step()
        world.kill(*range(6), code=1, tail=("KeyError: 'a typo of mine'",))
        world.step()
    world.until(lambda: world.end is not None)
    assert world.end.ruin is Ruin.OWN_ERROR


def test_errors_of_different_ranks_without_a_step_between(world: World) -> None:
    """Each slot fails less often than is allowed; together they bring the job nowhere."""
    for slot in range(6):
        world.until(lambda: met(world) or world.end is not None)
        if world.end is None:
            world.kill(slot, code=1, tail=(f"ValueError: of {slot}",))
            world.step()
    world.until(lambda: world.end is not None)
    assert world.end == AttemptEnd(Ruin.FRUITLESS)


def test_a_training_that_began_anew_makes_progress_below_the_step_that_it_had_reached(world: World) -> None:
    """All ranks raise StateLost, and begin at their checkpoint: their commits count from there on."""
    for committed in (40, 30, 20, 10):
        for slot in range(6):
            world.rank(slot).committed = committed  # type: ignore[union-attr]
        world.until(lambda committed=committed: world.view().progressed == committed)  # type: ignore[misc]
        world.step()
        world.kill(*range(6), code=1, tail=("ringtrain.errors.StateLost: ranks [1, 2] of the former world are lost",))
        world.step()
        world.until(lambda: met(world))
    assert world.end is None


def test_a_rank_that_only_lost_a_peer_has_no_error_of_its_own(world: World) -> None:
    """Scripts that are not elastic end with PeerLost, and are restarted until the limit on generations is reached."""
    for _ in range(5):
        world.kill(3, code=1, tail=("ringtrain.errors.PeerLost: rank 0 (10.0.0.7:7400) ended",))
        world.step()
        world.until(lambda: met(world))
    assert world.end is None


def test_all_ranks_end_with_0(world: World) -> None:
    """The attempt has succeeded; a rank that ends before the others is no loss."""
    world.process(0).end(RankPhase.SUCCEEDED, 0)
    world.step(5)
    assert (world.state.phase, world.end) == (GenerationPhase.RUNNING, None)
    for slot in range(1, 6):
        world.process(slot).end(RankPhase.SUCCEEDED, 0)
    world.until(lambda: world.end is not None)
    assert world.end == AttemptEnd()


def test_the_last_ranks_die_after_the_others_have_finished(world: World) -> None:
    """Nobody is left who knows what they had: the attempt has failed."""
    for slot in range(5):
        world.process(slot).end(RankPhase.SUCCEEDED, 0)
    world.kill(5)
    world.until(lambda: world.end is not None)
    assert world.end == AttemptEnd(Ruin.NO_SURVIVOR, 5)


def test_a_launcher_that_was_cut_off_hears_from_one_agent_after_the_other(world: World) -> None:
    """Ranks have finished meanwhile: those of which nothing is heard yet may have, too, for `timeout_s`."""
    for agent in world.agents.values():
        agent.cut = True
    for _ in range(LOST_AFTER + 2):
        world.step()
    for slot in range(6):
        world.process(slot).end(RankPhase.SUCCEEDED, 0)
    for worker in range(3):
        world.agents[worker].cut = False
        world.step()
        world.step()
    world.until(lambda: world.end is not None)
    assert world.end == AttemptEnd()


@pytest.mark.parametrize("timeouts", [1, 4])
def test_a_launcher_that_was_cut_off_for_a_while_makes_the_next_formation(world: World, timeouts: int) -> None:
    """Ranks are in the former one until their agents hear the order to leave it: when the line is back."""
    for agent in world.agents.values():
        agent.cut = True
    for _ in range(timeouts * int(RULES.timeout_s) + 1):
        world.step()
    for worker in range(3):
        world.agents[worker].cut = False
        world.step()
    world.until(lambda: world.state.number > 1 and met(world))
    assert world.end is None
    assert sorted(slots_of(world)) == [0, 1, 2, 3, 4, 5]


def test_ranks_that_are_not_heard_of_again_after_the_others_have_finished(world: World) -> None:
    """The attempt has failed, `timeout_s` later."""
    world.agents[2].cut = True
    for slot in range(4):
        world.process(slot).end(RankPhase.SUCCEEDED, 0)
    began = world.now
    world.until(lambda: world.end is not None)
    assert world.end == AttemptEnd(Ruin.NO_SURVIVOR, 4)
    assert world.now - began >= RULES.timeout_s


@pytest.mark.parametrize("killed", [0, 1, 2, 3, 4, 6, 9])
def test_the_launcher_dies_in_any_second_of_a_recovery(world: World, killed: int) -> None:
    """A new launcher repeats the phase of the previous one, and the generation is formed once."""
    world.kill(4)
    world.step(killed)
    world.restart_launcher()
    world.until(lambda: world.state.number == 2 and met(world))
    assert [formed.generation for formed in world.formed] == [1, 2]


def test_the_launcher_dies_while_all_is_well(world: World) -> None:
    """No rank leaves its world."""
    world.restart_launcher()
    for _ in range(3 * LOST_AFTER):
        world.step()
    assert met(world)
    assert world.state.number == 1


def test_a_launcher_without_notes_learns_from_the_processes(world: World) -> None:
    """The next generation follows the highest number of any process, and survivors are first."""
    world.kill(1)
    world.until(lambda: world.state.number == 2 and met(world))
    world.forget()
    world.until(lambda: met(world) and world.state.orders.given)
    assert world.state.number == 3
    assert slots_of(world)[0] == 0


def test_restart_stops_all_and_starts_all() -> None:
    """Every process is a new one, and pods stay."""
    world = running(RESTARTS)
    instances = {worker: agent.instance for worker, agent in world.agents.items()}
    world.kill(3)
    world.until(lambda: world.state.number == 2 and met(world))
    assert {p.life for p in world.state.members} == {2}
    assert {worker: agent.instance for worker, agent in world.agents.items()} == instances
    orders = [order for order in world.given if isinstance(order, Prepare)]
    assert all(order.restart for order in orders)


def test_a_formation_is_told_again_when_other_slots_are_asked_for() -> None:
    """Agents start the new slots, and members receive an order for the same generation."""
    world = running(workers=1)
    world.start(1)
    world.asked = frozenset(range(4))
    world.step()
    last = world.given[-1]
    assert isinstance(last, Formed)
    assert (last.generation, last.slots) == (1, frozenset(range(4)))


def _cut(world: World, *workers: int) -> None:
    """These are not heard of, and count as lost."""
    for worker in workers:
        world.agents[worker].cut = True
    world.until(lambda: all(world.view().slots[worker * world.slots].lost for worker in workers))


def _cut_off_and_back(rules: GenerationRules) -> World:
    """Worker 2 was cut off, and 0 and 1 trained on; then these were cut off, and 2 is back."""
    world = running(rules)
    world.until(lambda: _all_committed(world, 1))
    _cut(world, 2)
    world.until(lambda: world.state.number == 2 and world.state.phase is GenerationPhase.RUNNING)
    assert slots_of(world) == [0, 1, 2, 3]
    world.until(lambda: _all_committed(world, 2))
    _cut(world, 0, 1)
    for _ in range(2 * int(RULES.replace_timeout_s)):  # the launcher may be what is cut off
        world.step()
    world.agents[2].cut = False
    return world


BOTH = pytest.mark.parametrize("way", [RULES, SHRINKS], ids=["replace", "shrink"])


@BOTH
def test_members_of_the_last_world_are_waited_for(way: GenerationRules) -> None:
    """A process outside that world lacks its commits; nothing is lost if a member returns in time."""
    world = _cut_off_and_back(way)
    for _ in range(int(RULES.replace_timeout_s) - 5):
        world.step()
    assert [formed.generation for formed in world.formed] == [1, 2]
    assert world.state.times.stateless_at is not None
    world.agents[1].cut = False
    world.until(lambda: len(world.formed) == 3)
    assert slots_of(world)[:2] == [2, 3]
    assert world.state.losses.steps == 0


@BOTH
def test_members_of_the_last_world_are_not_waited_for_for_ever(way: GenerationRules) -> None:
    """After `replace_timeout_s` the others start from their checkpoint, and wait for no previous member."""
    world = _cut_off_and_back(way)
    began = world.now
    world.until(lambda: len(world.formed) == 3)
    assert world.now - began >= RULES.replace_timeout_s
    assert slots_of(world) == [4, 5]
    assert world.state.losses.steps == 1
    world.until(lambda: bool((rank := world.rank(5)) and rank.joined))
    world.kill(5)
    began = world.now
    world.until(lambda: len(world.formed) == 4)
    assert 4 in slots_of(world)
    assert way.shrinks <= (world.now - began < RULES.replace_timeout_s)


def _new_pods(world: World) -> None:
    before = {agent.instance for agent in world.agents.values()}
    for worker in range(3):
        world.lose(worker)
        world.start(worker)
    world.until(lambda: before.isdisjoint(world.registered.values()))
    for worker in (1, 2):  # before their processes wait for a world
        world.agents[worker].cut = True


def _killed(world: World) -> None:
    world.kill(*range(6))
    world.step()
    _another_pod(world, 0, 1, 2)


def _said_by_operator(world: World) -> None:
    world.ended |= {agent.instance for agent in world.agents.values()}
    _another_pod(world, 0, 1, 2)


def _another_pod(world: World, *cut: int) -> None:
    """A fourth one, and these are cut off."""
    world.asked = frozenset(range(8))
    _cut(world, *cut)
    world.start(3)


@pytest.mark.parametrize("end", [_new_pods, _killed, _said_by_operator], ids=["new-pods", "killed", "operator"])
def test_members_that_are_known_to_have_ended_are_not_waited_for(end: Callable[[World], None]) -> None:
    """Nobody can come back who has the state."""
    world = running(SHRINKS)
    world.until(lambda: _all_committed(world, 7))
    end(world)
    began = world.now
    world.until(lambda: len(world.formed) == 2)
    assert world.now - began < RULES.replace_timeout_s
    assert world.state.losses.steps == 7


def test_members_of_a_world_that_has_committed_nothing_are_not_waited_for() -> None:
    """Nobody has anything yet, so newcomers begin as they would have."""
    world = running(SHRINKS)
    _another_pod(world, 0, 1, 2)
    began = world.now
    world.until(lambda: len(world.formed) == 2)
    assert slots_of(world) == [6, 7]
    assert world.now - began < RULES.replace_timeout_s


def test_programs_that_are_started_anew_wait_for_nobody() -> None:
    """With Restart no process has a state that survives its world, so there is no wait for processes, only for pods."""
    world = running(replace(RESTARTS, shrinks=True))
    world.until(lambda: _all_committed(world, 7))
    _another_pod(world, 0, 1, 2)
    began = world.now
    world.until(lambda: len(world.formed) == 2)
    assert slots_of(world) == [6, 7]
    assert world.now - began < RULES.replace_timeout_s


def _joined_by_one(rules: GenerationRules) -> World:
    """Worker 0 has trained alone; 1 has joined it, and nothing was committed since."""
    world = running(rules, workers=1)
    world.until(lambda: _all_committed(world, 9))
    world.start(1)
    world.asked = frozenset(range(4))
    world.until(lambda: len(world.formed) == 2 and met(world))
    return world


def test_a_newcomer_has_the_state_when_its_world_has_committed() -> None:
    """Before that commit, the newcomer may have been disconnected during the transfer: the launcher waits for the
    member that it joined."""
    world = _joined_by_one(SHRINKS)
    _cut(world, 0)
    for _ in range(int(RULES.replace_timeout_s) - 5):
        world.step()
    assert len(world.formed) == 2
    world.agents[0].cut = False
    world.until(lambda: len(world.formed) == 3)
    assert slots_of(world) == [0, 1, 2, 3]
    world.until(lambda: met(world) and _all_committed(world, 10))
    _cut(world, 0)
    began = world.now
    world.until(lambda: len(world.formed) == 4)
    assert slots_of(world) == [2, 3]
    assert world.now - began < RULES.replace_timeout_s


@BOTH
@pytest.mark.parametrize("adopted", [2, 1], ids=["it-has-it", "of-an-older-world"])
def test_a_newcomer_that_says_that_it_has_the_state_goes_on(way: GenerationRules, adopted: int) -> None:
    """Its world has committed nothing since, because a commit requires all members: the launcher waits for no other
    process."""
    world = _joined_by_one(way)
    for slot in (2, 3):
        world.process(slot).adopted, world.process(slot).committed = adopted, 9
    _cut(world, 0)
    world.until(lambda: world.state.phase is GenerationPhase.PREPARING)
    began = world.now
    world.until(lambda: len(world.formed) == 3)
    waited = world.now - began
    assert slots_of(world) == [2, 3]
    assert (world.state.losses.steps, world.state.steps.training) == (0, 9)
    assert (waited < RULES.replace_timeout_s) == (adopted == 2 and way.shrinks)


def test_what_a_training_that_began_anew_has_committed_is_told() -> None:
    """Worlds receive the commit that was lost until there is a new one."""
    world = running(SHRINKS)
    world.until(lambda: _all_committed(world, 7))
    for slot in range(6):
        world.kill(slot)
    world.step()
    world.until(lambda: world.settled() and met(world))
    assert world.formed[-1].committed == 7
    world.until(lambda: met(world) and _all_committed(world, 2))
    world.kill(0)
    world.step()
    world.until(lambda: world.settled() and met(world))
    assert world.formed[-1].committed == 2


def test_a_newcomer_does_not_wait_for_members_that_have_ended() -> None:
    """A member that has ended may return, but the newcomer has the state and is available."""
    world = _joined_by_one(SHRINKS)
    world.kill(*(0, 1))
    began = world.now
    world.until(lambda: len(world.formed) == 3)
    assert world.now - began < RULES.replace_timeout_s


def test_a_planned_change_waits_for_the_member_that_stays() -> None:
    """The staying member, which has the leavers' state, is silent when all have left their world."""
    world = running(SHRINKS)
    world.until(lambda: _all_committed(world, 5))
    world.asked = frozenset({0, 1, 6, 7})
    world.start(3)
    world.until(lambda: world.state.phase is GenerationPhase.PREPARING and not world.state.orders.urgent)
    world.step()
    world.hold(5)
    world.until(lambda: all(world.view().slots[slot].state.parked for slot in (0, 1, 2, 3, 4, 6, 7)))
    world.agents[0].cut = True
    world.until(lambda: world.view().slots[0].silent)
    world.process(5).held = False
    world.until(lambda: len(world.formed) == 2)
    assert {2, 3, 4, 5} <= set(slots_of(world)), "all that live and have the state"
    world.until(lambda: len(world.formed) == 3, seconds=20)
    assert slots_of(world) == [6, 7], "they have got it from those that were to leave"


def test_another_launcher_process_knows_who_has_the_state() -> None:
    """This includes members whose agents have never called this launcher."""
    world = _cut_off_and_back(SHRINKS)
    world.agents[2].cut = True
    world.restart_launcher()
    world.step(LOST_AFTER)
    world.agents[2].cut = False
    for _ in range(int(RULES.replace_timeout_s) - 5):
        world.step()
    assert len(world.formed) == 2
    world.agents[0].cut = False
    world.until(lambda: len(world.formed) == 3)
    assert {0, 1} <= set(slots_of(world))


def test_who_comes_back_too_late_has_a_state_of_the_past() -> None:
    """The process is ahead of the training that started from a checkpoint, and joins it nevertheless as a newcomer."""
    world = _cut_off_and_back(SHRINKS)
    world.process(0).committed, world.process(0).parked = 9, True
    world.until(lambda: len(world.formed) == 3)
    world.until(lambda: _all_committed(world, 2))
    world.agents[0].cut = False
    world.until(lambda: len(world.formed) == 4)
    world.step()
    assert [process.life for process in world.state.members if process.slot == 0] == [1]
    assert (world.state.steps.training, world.state.steps.held) == (2, 3)
