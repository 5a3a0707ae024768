"""The base of a framework's DiLoCo."""

from collections.abc import Sequence

from ringtrain.adapter import CollectiveGroup, OnHostOptimizer
from ringtrain_diloco.optimizer import DiLoCo
from ringtrain_diloco.participant import DiLoCoParticipant


class OnHostDiLoCo(OnHostOptimizer):
    """A framework's DiLoCo, whose outer steps `outer` makes."""

    outer: DiLoCo

    @property
    def due(self) -> bool:
        """Whether a synchronization is due after the last step; with `elastic`, a commit of the state."""
        return self.outer.due

    def as_participant(self) -> DiLoCoParticipant:
        """Return this as a part of an elastic state."""
        return DiLoCoParticipant(self)

    @property
    def undoable(self) -> int:
        """How many of the last outer steps can be undone."""
        return self.outer.undoable

    def prepare(self, group: CollectiveGroup, former: Sequence[int | None]) -> None:
        """Bring the outer optimizer into the world of now. Collective."""
        self.outer.prepare(group, former)

    def adopt(self) -> None:
        """Go on with what `prepare` brought. Local."""
        self.outer.adopt()

    def finish_commit(self, whole: bool = False) -> None:
        """Average what steps have changed since the last time; a commit of the state calls it. Collective."""
        self.outer.finish_commit(whole)
