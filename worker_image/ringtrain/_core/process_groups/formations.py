"""State that a process of an elastic job takes from one world into the next.

The members of a world exchange it before anything else, and so know each member's rank in the former world.
"""

import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ringtrain._core.world.agent_socket import RankAgentSocket, WorldReadiness, agent_of


class BoundProcessSet(Protocol):
    """Process set object of the user."""

    def bind(self, context: Any, number: int) -> None:
        """Become the set with that number in `context`, a world."""


@dataclass(frozen=True)
class FormationPlace:
    """Rank of a process in a generation of the world."""

    formation: int
    rank: int


@dataclass
class ProcessFormationMemory:
    """Values that this process retains from one world to the next.

    `formation`: number of the last world. `adopted`: number and rank of the last world in which all ranks confirmed
    that their state was complete. `prepared`: number and rank of a world for which this process has its complete state,
    while it is unknown whether all other ranks have theirs. `unshared`: this process left the last world without
    sending state that perhaps no other process has. `restored`: checkpoint from which this process started. `sets`:
    process sets of the last world.
    """

    formation: int = 0
    committed: int = 0
    lost_steps: int = 0
    unshared: bool = False
    restored: str = ""
    adopted: FormationPlace | None = None
    prepared: FormationPlace | None = None
    sets: list[tuple[list[int], weakref.ref[Any] | None]] = field(default_factory=list)

    def readiness(self) -> WorldReadiness:
        """Return the message to the agent."""
        lost, self.lost_steps = self.lost_steps, 0
        adopted = self.adopted.formation if self.adopted else 0
        return WorldReadiness(self.formation, self.committed, lost, self.unshared, adopted)

    def summary(self) -> dict[str, Any]:
        """Return the message to the members of the next world."""
        return {
            "adopted": _formation_place_fields(self.adopted),
            "prepared": _formation_place_fields(self.prepared),
            "sets": [ranks for ranks, _ in self.sets],
        }


CARRIED = ProcessFormationMemory()


@dataclass(frozen=True)
class FormerFormation:
    """Former ranks of the members.

    `formation`: the number of the world from which survivors have their state, 0: none. `ranks`: the former rank of
    each rank; None for newcomers.
    """

    formation: int
    ranks: tuple[int | None, ...]

    @property
    def survivors(self) -> list[int]:
        """Return the ranks whose state is used."""
        return [rank for rank, former in enumerate(self.ranks) if former is not None]


def former_process_formation(reported: Sequence[dict[str, Any]]) -> FormerFormation:
    """Determine the survivors from the messages of all members.

    A world's state is valid if any member has adopted it. That member passed a barrier before, so each other member of
    that world had prepared all of its state, and is a survivor, whether or not it passed the barrier too. A rank with
    neither is a newcomer, even if it has older state.
    """
    adopted = [_place_in_process_formation(one["adopted"]) for one in reported]
    prepared = [_place_in_process_formation(one["prepared"]) for one in reported]
    top = max((place.formation for place in adopted if place is not None), default=0)
    ranks: list[int | None] = []
    for places in zip(adopted, prepared, strict=True):
        ranks.append(next((place.rank for place in places if place is not None and place.formation == top), None))
    return FormerFormation(top, tuple(ranks))


def own_agent() -> RankAgentSocket | None:
    """Return the connection to the agent that changes this process's worlds; None if the world never changes."""
    return agent_of(os.environ)


def is_elastic() -> bool:
    """Return whether this process has an agent that may change its world."""
    return own_agent() is not None


def _formation_place_fields(place: FormationPlace | None) -> list[int] | None:
    return None if place is None else [place.formation, place.rank]


def _place_in_process_formation(fields: Any) -> FormationPlace | None:
    return None if fields is None else FormationPlace(int(fields[0]), int(fields[1]))
