"""State that a process of an elastic job carries from one generation of the world to the next.

The members of a world exchange it before anything else, and so know each member's rank in the former world.
"""

import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ringtrain._core.world.agent_socket import RankAgentSocket, WorldReadiness, agent_of


class BoundProcessSet(Protocol):
    """Interface of a user's process set object, which is connected to its set again in each world."""

    def bind(self, context: Any, number: int) -> None:
        """Connect this object to the process set `number` of the world `context`."""


@dataclass(frozen=True)
class FormationPlace:
    """Rank of a process in one generation of the elastic world. `formation`: number of the generation."""

    formation: int
    rank: int


@dataclass
class ProcessFormationMemory:
    """Values that this process carries from one generation of the elastic world to the next.

    `formation`: number of the last world. `committed`: number of committed steps. `lost_steps`: number of uncommitted
    steps that are lost. `adopted`: number and rank of the last world in which all ranks confirmed that their state was
    complete. `prepared`: number and rank of a world for which this process has its complete state, while it is unknown
    whether all other ranks have theirs. `unshared`: whether this process left the last world without sending state that
    perhaps no other process has. `restored`: checkpoint from which this process started. `sets`: process sets of the
    last world.
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
        """Return the report with which this rank asks its agent for the next world."""
        lost, self.lost_steps = self.lost_steps, 0
        adopted = self.adopted.formation if self.adopted else 0
        return WorldReadiness(self.formation, self.committed, lost, self.unshared, adopted)

    def summary(self) -> dict[str, Any]:
        """Return the values that this rank sends to all members of the next world.

        `adopted`, `prepared`: number and rank of a world, or None. `sets`: the ranks of each process set.
        """
        return {
            "adopted": _formation_place_fields(self.adopted),
            "prepared": _formation_place_fields(self.prepared),
            "sets": [ranks for ranks, _ in self.sets],
        }


CARRIED = ProcessFormationMemory()


@dataclass(frozen=True)
class FormerFormation:
    """Generation from which members of an elastic world have their state, and the ranks that they had in it.

    `formation`: number of that generation; 0 if there is none. `ranks`: for each rank of the present world, its former
    rank; None for a newcomer.
    """

    formation: int
    ranks: tuple[int | None, ...]

    @property
    def survivors(self) -> list[int]:
        """Return the ranks that have state of the former generation."""
        return [rank for rank, former in enumerate(self.ranks) if former is not None]


def former_process_formation(reported: Sequence[dict[str, Any]]) -> FormerFormation:
    """Find the newest generation whose state is complete, and its survivors, from the summaries of all members.

    A world's state is valid if any member has adopted it. That member passed a barrier before, so each other member of
    that world had prepared all of its state, and is a survivor, whether or not it passed the barrier too. A rank that
    has neither adopted nor prepared that world's state is a newcomer, even if it has older state.
    """
    adopted = [_place_in_process_formation(one["adopted"]) for one in reported]
    prepared = [_place_in_process_formation(one["prepared"]) for one in reported]
    top = max((place.formation for place in adopted if place is not None), default=0)
    ranks: list[int | None] = []
    for places in zip(adopted, prepared, strict=True):
        ranks.append(next((place.rank for place in places if place is not None and place.formation == top), None))
    return FormerFormation(top, tuple(ranks))


def own_agent() -> RankAgentSocket | None:
    """Return the connection to the agent of an elastic job; None if this process's world never changes."""
    return agent_of(os.environ)


def is_elastic() -> bool:
    """Return whether this process belongs to an elastic job, whose agent may change its world."""
    return own_agent() is not None


def _formation_place_fields(place: FormationPlace | None) -> list[int] | None:
    return None if place is None else [place.formation, place.rank]


def _place_in_process_formation(fields: Any) -> FormationPlace | None:
    return None if fields is None else FormationPlace(int(fields[0]), int(fields[1]))
