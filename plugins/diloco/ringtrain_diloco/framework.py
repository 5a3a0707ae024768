"""The base of a framework's DiLoCo."""

from collections.abc import Sequence

from ringtrain.adapter import CollectiveGroup, OnHostOptimizer
from ringtrain_diloco.optimizer import DiLoCo
from ringtrain_diloco.participant import DiLoCoParticipant


class OnHostDiLoCo(OnHostOptimizer):
    """Base of a framework's DiLoCo. `outer` makes the outer steps."""

    outer: DiLoCo

    @property
    def due(self) -> bool:
        """Whether a synchronization is due after the last step: with `elastic`, a commit of the state."""
        return self.outer.due

    def as_participant(self) -> DiLoCoParticipant:
        """Return the participant of this optimizer in an elastic state."""
        return DiLoCoParticipant(self)

    @property
    def undoable(self) -> int:
        """Number of outer steps that can be undone."""
        return self.outer.undoable

    def prepare(self, group: CollectiveGroup, former: Sequence[int | None]) -> None:
        """Reshard the outer optimizer for the present world. Collective."""
        self.outer.prepare(group, former)

    def adopt(self) -> None:
        """Use the state that `prepare` made. Local."""
        self.outer.adopt()

    def finish_commit(self, whole: bool = False) -> None:
        """Synchronize fragments; a commit of the state calls it. Collective."""
        self.outer.finish_commit(whole)
