"""What optimizers of frameworks and devices have of the `HostOptimizer` that makes their updates."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ringtrain._core.process_groups.context import current
from ringtrain._core.process_groups.group import CollectiveGroup, ProcessGroup
from ringtrain._core.process_groups.process_sets import ProcessSet, open_group
from ringtrain.optim.cut import first_optimizer_group
from ringtrain.optim.host import HostOptimizer


class HostOptimizerGroups:
    """The groups that an optimizer of a framework exchanges in: that of this world and, while one is prepared, that of
    the next. Each is a group of the ranks of `process_set` alone, whose collectives wait for no other.
    """

    def __init__(self, process_set: ProcessSet) -> None:
        self.process_set = process_set
        self._opened: list[ProcessGroup] = []

    def first(self, elastic: bool) -> CollectiveGroup:
        """Open the group that the optimizer is made for; one of this rank alone where it joins others, whose state it
        gets later. Raises ConfigurationError where it would need that and is not `elastic`. Collective."""
        return first_optimizer_group(elastic, self.open)

    def open(self) -> ProcessGroup:
        """Open a group in this process's present world. Collective."""
        self._opened.append(open_group(self.process_set))
        return self._opened[-1]

    def adopt(self) -> None:
        """Keep the group that was opened last. Local."""
        self._opened = self._opened[-1:]

    def close(self) -> None:
        """Close all groups. Local."""
        for group in self._opened:
            group.close()


class OnHostOptimizer:
    """Base of an optimizer of a framework, whose updates `_host` makes, as `ringtrain.elastic.State` takes it.

    A derived class sets `_host` and `_groups`, and extends what it does besides the host's part.
    """

    _host: HostOptimizer
    _groups: HostOptimizerGroups

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

    def reform(self, former: Sequence[int | None]) -> None:
        """Go on in this process's present world: `prepare`, then `adopt`. Collective."""
        self.prepare(current().group(), former)
        self.adopt()

    def prepare(self, group: CollectiveGroup, former: Sequence[int | None]) -> None:
        """Bring weights and state into the present world, beside those of the former one, as
        `ringtrain.optim.HostOptimizer.prepare`. Collective in the process set, of whose ranks it opens a group of
        its own: `group` is not used."""
        self._host.prepare(self._groups.open(), former)

    def adopt(self) -> None:
        """Go on with what `prepare` brought. Local; not while a step runs."""
        self._host.adopt()
        self._groups.adopt()

    def hand_over(self, leaving: Collection[int]) -> None:
        """Have ranks that stay keep what only the ranks `leaving` hold. Collective; see
        `ringtrain.optim.HostOptimizer.hand_over`."""
        self._host.hand_over(leaving)

    def discard(self) -> None:
        """Forget what `prepare` brought. Local."""
        self._host.discard()
