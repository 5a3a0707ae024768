"""What a process of an elastic job carries from one world into the next.

The members of a world tell each other of it before anything else, and so learn who comes from where.
"""

import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ringtrain._core.world.agent_socket import RankAgentSocket, WorldReadiness, agent_of


class BoundProcessSet(Protocol):
    """A set of ranks as users hold it."""

    def bind(self, context: Any, number: int) -> None:
        """Be the set of that number in `context`, a world."""


@dataclass(frozen=True)
class FormationPlace:
    """The rank that a process had in a formation."""

    formation: int
    rank: int


@dataclass
class ProcessFormationMemory:
    """The memory of this process between worlds.

    `formation`: the last world that it was in. `adopted`: where the state that it holds was whole and agreed on.
    `prepared`: the same for a formation whose state is all here, though whether all others have theirs is not
    known. `unshared`: this process has left its last world and not given to others what it alone may hold.
    `restored`: the checkpoint that this process has begun from. `sets`: the process sets of the last world.
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
        """What the agent is told."""
        lost, self.lost_steps = self.lost_steps, 0
        adopted = self.adopted.formation if self.adopted else 0
        return WorldReadiness(self.formation, self.committed, lost, self.unshared, adopted)

    def told(self) -> dict[str, Any]:
        """What the members of the next world are told."""
        return {
            "adopted": _formation_place_fields(self.adopted),
            "prepared": _formation_place_fields(self.prepared),
            "sets": [ranks for ranks, _ in self.sets],
        }


CARRIED = ProcessFormationMemory()


@dataclass(frozen=True)
class FormerFormation:
    """Who comes from where. `formation`: the one that survivors have their state from, 0: there are none.
    `ranks`: by rank, the rank there; None for newcomers."""

    formation: int
    ranks: tuple[int | None, ...]

    @property
    def survivors(self) -> list[int]:
        """The ranks whose state counts."""
        return [rank for rank, former in enumerate(self.ranks) if former is not None]


def former_process_formation(told: Sequence[dict[str, Any]]) -> FormerFormation:
    """What the members' words come to.

    A formation has happened when any member has adopted its state. That member went through a barrier for it, so
    each other member of that formation had all of its state prepared, and counts, whether or not it got through
    the barrier as well. Whoever has neither is a newcomer, even with a state of an older formation.
    """
    adopted = [_place_in_process_formation(one["adopted"]) for one in told]
    prepared = [_place_in_process_formation(one["prepared"]) for one in told]
    top = max((place.formation for place in adopted if place is not None), default=0)
    ranks: list[int | None] = []
    for places in zip(adopted, prepared, strict=True):
        ranks.append(next((place.rank for place in places if place is not None and place.formation == top), None))
    return FormerFormation(top, tuple(ranks))


def own_agent() -> RankAgentSocket | None:
    """The agent that tells this process its worlds; None where the world never changes."""
    return agent_of(os.environ)


def is_elastic() -> bool:
    """Whether an agent tells this process its worlds, so that the world may change."""
    return own_agent() is not None


def _formation_place_fields(place: FormationPlace | None) -> list[int] | None:
    return None if place is None else [place.formation, place.rank]


def _place_in_process_formation(fields: Any) -> FormationPlace | None:
    return None if fields is None else FormationPlace(int(fields[0]), int(fields[1]))
