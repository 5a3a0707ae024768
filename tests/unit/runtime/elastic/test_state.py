"""Records of a state about its world, its commits and its newcomers."""

from collections.abc import Iterator
from typing import Any

import pytest
from ring.worlds import world_of
from support.world_config import changed_config

from ringtrain import elastic
from ringtrain._core.process_groups.context import current
from ringtrain._core.process_groups.formations import (
    CARRIED,
    FormationPlace,
    FormerFormation,
    ProcessFormationMemory,
)
from ringtrain.elastic.agreement import ElasticCommonStep


class Thing:
    """A value that nothing else knows."""


class Watching(elastic.Participant):
    """Records an argument of `receive`, and in `seen` the process's record of worlds at `prepare` and `adopt`."""

    undoable: int | None = None  # see `Participant`

    def __init__(self, undoable: int | None = None) -> None:
        self.value, self.undoable = Thing(), undoable
        self.is_undone: bool | None = None
        self.seen: list[tuple[FormationPlace | None, FormationPlace | None]] = []

    def receive(self, agreed: ElasticCommonStep, is_undone: bool) -> None:
        self.is_undone = is_undone

    def prepare(self, world: Any) -> None:
        self.adopt()

    def adopt(self) -> None:
        self.seen.append((CARRIED.prepared, CARRIED.adopted))


def _state(watching: Watching) -> Any:
    def participant(_: Thing) -> elastic.Participant:
        return watching

    return elastic.State(handlers=[(Thing, participant)], thing=watching.value)


@pytest.fixture(autouse=True)
def carried() -> Iterator[None]:
    """Let this process carry nothing from world to world, as a new process does."""
    before = dict(vars(CARRIED))
    vars(CARRIED).update(vars(ProcessFormationMemory()))
    yield
    vars(CARRIED).update(before)


@pytest.mark.parametrize("formation", [0, 3])
def test_a_generation_is_adopted_after_all_ranks_have_prepared_it(formation: int) -> None:
    """Whoever is lost in between finds out in the next world. A world without an agent has no generation."""

    def sync(_: int) -> Any:
        current().config = changed_config(current().config, formation=formation)
        watching = Watching()
        _state(watching).sync()
        return watching.seen

    with world_of(1) as world:
        (seen,) = world.run(sync)
    place = FormationPlace(formation, 0) if formation else None
    assert seen == [(None, None), (place, None)]
    assert (CARRIED.prepared, CARRIED.adopted) == (None, place)


@pytest.mark.parametrize(("undoable", "expected"), [(None, [False, False]), (1, [True, False])])
def test_only_a_newcomer_with_a_shard_has_an_incomplete_state(undoable: int | None, expected: list[bool]) -> None:
    """Until it has its shard. Rank 0 is new, rank 1 survived."""

    def sync(_: int) -> bool | None:
        current().former = FormerFormation(1, (None, 0))
        watching = Watching(undoable)
        _state(watching).sync()
        return watching.is_undone

    with world_of(2) as world:
        assert world.run(sync) == expected


def test_a_state_counts_its_commits() -> None:
    """From the number of the state that it has received."""

    def commit(rank: int) -> list[int]:
        current().former = FormerFormation(1, (None, 0))
        state = _state(Watching())
        state._committed = 7 * rank
        state.sync()
        found = [state.committed]
        state.commit()
        return [*found, state.committed]

    with world_of(2) as world:
        assert world.run(commit) == [[7, 8]] * 2
