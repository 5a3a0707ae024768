"""The base of a framework's DiLoCo."""

from collections.abc import Sequence

from ringtrain.adapter import CollectiveGroup, OnHostOptimizer
from ringtrain_diloco.optimizer import DiLoCo
from ringtrain_diloco.recovery import DiLoCoParticipant


class OnHostDiLoCo(OnHostOptimizer):
    """Base class of DiLoCo for torch and JAX: `outer`, a DiLoCo for numpy arrays, makes the outer steps."""

    outer: DiLoCo

    @property
    def due(self) -> bool:
        """Whether a synchronization is due after the last step. With `elastic`, the script has to commit then."""
        return self.outer.due

    def as_participant(self) -> DiLoCoParticipant:
        """Return an object through which `ringtrain.elastic.State` commits and rolls back this optimizer."""
        return DiLoCoParticipant(self)

    @property
    def undoable(self) -> int:
        """Number of outer steps that a rollback can undo."""
        return self.outer.undoable

    def prepare(self, group: CollectiveGroup, former: Sequence[int | None]) -> None:
        """Reshard the state of the outer optimizer for the new world. Collective."""
        self.outer.prepare(group, former)

    def adopt(self) -> None:
        """Switch to the state that `prepare` built. Not collective."""
        self.outer.adopt()

    def finish_commit(self, whole: bool = False) -> None:
        """Synchronize the fragment that is due, or all fragments if none is due or `whole` is True. Called by a commit.
        Collective."""
        self.outer.finish_commit(whole)
