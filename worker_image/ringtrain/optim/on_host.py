"""What optimizers of frameworks and devices have of the `HostOptimizer` that makes their updates."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ringtrain._core.process_groups.group import CollectiveGroup
from ringtrain.optim.diloco import DiLoCo
from ringtrain.optim.host import HostOptimizer


class OnHostOptimizer:
    """An optimizer whose updates `_host` makes, as `ringtrain.elastic.State` takes it.

    A class adds `prepare` and `adopt`, and in the others' place what it does beside the host's part.
    """

    _host: HostOptimizer

    @property
    def updates(self) -> int:
        """Updates done so far."""
        return self._host.updates

    @property
    def accumulating(self) -> bool:
        """Whether gradients of an update that has not been made are here."""
        return self._host.accumulating

    @property
    def state_bytes(self) -> int:
        """Bytes of optimizer state that this rank holds in host memory."""
        return self._host.state_bytes

    def wait_for(self) -> None:
        """Return when the host has all weights of the last step. Raises what made it fail."""
        self._host.wait_for()

    def commit(self) -> None:
        """Let `rollback` go back to the rule as it is now."""
        self._host.commit()

    def rollback(self, to: int | None = None) -> int:
        """Give up the step that is under way and go back to the last update that is done, or to the one before, as
        `ringtrain.optim.HostOptimizer.rollback`. Local."""
        return self._host.rollback(to)

    def hand_over(self, leaving: Collection[int]) -> None:
        """Have ranks that stay keep what only the ranks `leaving` hold. Collective; see
        `ringtrain.optim.HostOptimizer.hand_over`."""
        self._host.hand_over(leaving)

    def discard(self) -> None:
        """Forget what `prepare` brought. Local."""
        self._host.discard()


class OnHostDiLoCo(OnHostOptimizer):
    """A framework's DiLoCo, whose outer steps `outer` makes."""

    outer: DiLoCo

    @property
    def due(self) -> bool:
        """Whether a synchronization is due after the last step; with `elastic`, a commit of the state."""
        return self.outer.due

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
