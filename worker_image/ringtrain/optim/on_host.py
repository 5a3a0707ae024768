"""Base class of the optimizers for frameworks and devices whose updates a `HostOptimizer` computes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ringtrain._core.process_groups.context import current
from ringtrain._core.process_groups.group import CollectiveGroup, ProcessGroup
from ringtrain._core.process_groups.process_sets import ProcessSet, open_group
from ringtrain.optim.cut import first_optimizer_group
from ringtrain.optim.host import HostOptimizer


class HostOptimizerGroups:
    """Process groups of a framework's optimizer: one for this world and, during `prepare`, one for the next world.

    Each has only the ranks of `process_set`, and its collectives wait for no other group.
    """

    def __init__(self, process_set: ProcessSet) -> None:
        self.process_set = process_set
        self._opened: list[ProcessGroup] = []

    def first(self, elastic: bool) -> CollectiveGroup:
        """Open the first group of the optimizer; return a placeholder if this rank joins a running training.

        Raises ConfigurationError if this rank would need the state of others and `elastic` is False. Collective.
        """
        return first_optimizer_group(elastic, self.open)

    def open(self) -> ProcessGroup:
        """Open and return a process group in the current world. Collective."""
        self._opened.append(open_group(self.process_set))
        return self._opened[-1]

    def adopt(self) -> None:
        """Discard all groups except the last opened one. Not collective."""
        self._opened = self._opened[-1:]

    def close(self) -> None:
        """Close all groups. Local."""
        for group in self._opened:
            group.close()


class OnHostOptimizer:
    """Base class of framework optimizers that update with `_host`; has the methods for `ringtrain.elastic.State`.

    A derived class sets `_host` and `_groups`, and extends the methods for its own part.
    """

    _host: HostOptimizer
    _groups: HostOptimizerGroups

    @property
    def updates(self) -> int:
        """Return the number of completed updates."""
        return self._host.updates

    @property
    def accumulating(self) -> bool:
        """Return whether gradients of an incomplete update are stored."""
        return self._host.accumulating

    @property
    def state_bytes(self) -> int:
        """Return the bytes of optimizer state on this rank in host memory."""
        return self._host.state_bytes

    def wait_for(self) -> None:
        """Wait until all weights of the last step are in host memory. Raises the error of a failed step."""
        self._host.wait_for()

    def commit(self) -> None:
        """Record the current rule as the one that `rollback` restores."""
        self._host.commit()

    def rollback(self, to: int | None = None) -> int:
        """Undo the step in progress, and return to the last update or the one before, as `HostOptimizer.rollback` does.

        Local.
        """
        return self._host.rollback(to)

    def reform(self, former: Sequence[int | None]) -> None:
        """Continue in this process's new world: `prepare`, then `adopt`. Collective."""
        self.prepare(current().group(), former)
        self.adopt()

    def prepare(self, group: CollectiveGroup, former: Sequence[int | None]) -> None:
        """Reshard weights and state for the new world, as `HostOptimizer.prepare` does.

        Collective in the process set, of whose ranks it opens a separate group; `group` is ignored.
        """
        self._host.prepare(self._groups.open(), former)

    def adopt(self) -> None:
        """Switch to the state that `prepare` received. Not collective; not during a step."""
        self._host.adopt()
        self._groups.adopt()

    def hand_over(self, leaving: Collection[int]) -> None:
        """Send state that only the `leaving` ranks have to ranks that stay.

        Collective; see `HostOptimizer.hand_over`.
        """
        self._host.hand_over(leaving)

    def discard(self) -> None:
        """Discard the state that `prepare` received. Not collective."""
        self._host.discard()
