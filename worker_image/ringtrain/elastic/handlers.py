"""How values of different kinds are kept, restored and sent: a handler a value."""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, Protocol, runtime_checkable

from ringtrain._core.process_groups.context import current_or_none
from ringtrain._core.process_groups.rank_context import ProcessGroupContext
from ringtrain._core.wire.values import ForeignWireValues
from ringtrain.elastic.transfer import broadcast
from ringtrain.optim.recovery import StatefulObject


class StateHandler(ABC):
    """Keeps one value of a `State`. Derive from it for types that no handler knows, and put the class into the
    registry of handlers.

    A handler with Horovod's `sync(self)`, without a rank, is taken as well. A method `refresh(self)` is called
    in the place of `sync` where nobody needs the value: the world has another size now.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    @abstractmethod
    def save(self) -> None:
        """Copy the value as it is now: a step is committed."""

    @abstractmethod
    def restore(self) -> None:
        """Make the value what it was at the last `save`."""

    @abstractmethod
    def sync(self, root: int = 0) -> None:
        """Make the value that of rank `root`. Collective."""

    def set_value(self, value: Any) -> None:
        """Keep `value` from now on."""
        self.value = value
        self.save()


class StatefulObjectHandler(StateHandler):
    """For objects with `state_dict()` and `load_state_dict()`: samplers, schedules, a shard's position."""

    foreign: ForeignWireValues | None = None  # what the framework of a handler derived from this one adds to plain data

    def __init__(self, value: StatefulObject) -> None:
        super().__init__(value)
        self.save()

    def save(self) -> None:
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def sync(self, root: int = 0) -> None:
        received = broadcast(self.value.state_dict(), root, type(self.value).__name__, self.foreign)
        self.value.load_state_dict(copy.deepcopy(received))

    def refresh(self) -> None:
        self.value.load_state_dict(self.value.state_dict())


class ShardHandler(StatefulObjectHandler):
    """For a shard of the data: its position."""

    @property
    def steps_ahead(self) -> int:
        """Steps begun since the last commit."""
        return int(self.value.steps_since(self._saved))


@runtime_checkable
class ElasticOptimizer(Protocol):
    """A host optimizer, whose state is spread over the ranks, and which rebuilds what a lost rank had."""

    @property
    def updates(self) -> int: ...

    @property
    def accumulating(self) -> bool: ...

    def wait_for(self) -> None: ...

    def commit(self) -> None: ...

    def rollback(self, to: int) -> Any: ...

    def prepare(self, group: Any, former: Sequence[int | None]) -> None: ...

    def adopt(self) -> None: ...

    def discard(self) -> None: ...

    def hand_over(self, leaving: Collection[int]) -> None: ...


@runtime_checkable
class ElasticCommitFinishing(Protocol):
    """What ranks do together once all have committed a step, and once more in the next world if that failed;
    `whole`: ranks are about to leave by plan, or to join."""

    def finish_commit(self, whole: bool) -> None: ...


class ElasticOptimizerHandler:
    """For host optimizers. Nothing is copied: the optimizer can undo its last update."""

    def __init__(self, value: ElasticOptimizer) -> None:
        self.value = value
        self._made_in = current_or_none()
        self._is_prepared = False
        self.save()

    @property
    def committed_updates(self) -> int:
        """Updates at the last commit."""
        return self._updates

    @property
    def updates_ahead(self) -> int:
        """Updates since the last commit."""
        return int(self.value.updates) - self._updates

    @property
    def is_accumulating(self) -> bool:
        """Whether an update has begun and is not made."""
        return self.value.accumulating

    def wait(self) -> None:
        """Return when the weights are those of the last step. Raises what made it fail."""
        self.value.wait_for()

    def set_value(self, value: ElasticOptimizer) -> None:
        """Keep `value` from now on."""
        self.value = value
        self.save()

    def save(self) -> None:
        """Note that its updates are committed."""
        self.value.commit()
        self._updates = int(self.value.updates)

    def restore(self) -> None:
        """Go back to the last commit."""
        self.value.rollback(self._updates)

    def settle(self, was_adopted: bool) -> None:
        """What became of a cut that was prepared in a world that broke: others have adopted it, or nobody. Nothing
        was prepared in the world in which the optimizer was made."""
        if self._is_prepared and was_adopted:
            self.adopt()
        elif self._is_prepared:
            self._is_prepared = False
            self.value.discard()

    @property
    def undoable(self) -> int:
        """How many of its last updates can be undone."""
        return int(getattr(self.value, "undoable", 1))

    def finish_commit(self, whole: bool = False) -> None:
        """Do what is left to all ranks together, after a commit or in a new world; `whole`: before a planned
        change of the world. Collective."""
        if isinstance(self.value, ElasticCommitFinishing):
            self.value.finish_commit(whole)
            self._updates = int(self.value.updates)

    def hand_over(self, leaving: Collection[int]) -> None:
        """Have ranks that stay hold what only those of `leaving` hold. Collective, at a commit."""
        self.value.hand_over(leaving)

    def go_back(self, world: ProcessGroupContext, updates: int) -> None:
        """Undo what goes beyond `updates`, where this rank has a state."""
        if world.former.ranks[world.config.place.rank] is not None:
            self.value.rollback(updates)

    def prepare(self, world: ProcessGroupContext) -> bool:
        """Build this world's cut of the state beside the former one. Collective.

        False: the optimizer was made in this world, by all its ranks together.
        """
        is_new = self._made_in is world and not world.former.survivors
        self._made_in = None
        if is_new:
            return False
        self.value.prepare(world.group(), world.former.ranks)
        self._is_prepared = True
        return True

    def adopt(self) -> None:
        """Go on with the cut that was prepared."""
        self._is_prepared = False
        self.value.adopt()
        self.save()


def sync_handler(handler: Any, root: int) -> None:
    """Make the handler's value that of rank `root`, whichever `sync` it has. Collective."""
    if inspect.signature(handler.sync).parameters:
        handler.sync(root)
        return
    if root == 0:  # all that Horovod's know
        handler.sync()
        return
    handler.save()
    kept = {name: value for name, value in vars(handler).items() if name != "value"}
    vars(handler).update(broadcast(kept, root, type(handler).__name__))
    handler.restore()
