"""Support for optimizers with sharded state in elastic states."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol, runtime_checkable

from ringtrain._core.process_groups.context import current_or_none
from ringtrain._core.process_groups.rank_context import ProcessGroupContext
from ringtrain.elastic.participants import Participant
from ringtrain.errors import ConfigurationError


@runtime_checkable
class ElasticOptimizer(Protocol):
    """Interface of an optimizer with sharded state that can rebuild the shards of lost ranks; see `HostOptimizer`."""

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


class OptimizerParticipant(Participant):
    """Participant of an elastic state for an `ElasticOptimizer`.

    A commit copies nothing, because the optimizer can undo its last update.
    """

    def __init__(self, value: ElasticOptimizer) -> None:
        self.value = value
        self._made_in = current_or_none()
        self._is_prepared = False
        self.commit()
        self._planned = self._committed

    def set_value(self, value: ElasticOptimizer) -> None:
        self.value = value
        self.commit()

    @property
    def steps_ahead(self) -> int:
        return int(self.value.updates) - self._committed

    @property
    def undoable(self) -> int:
        return 1

    def check(self, name: str, call: str) -> None:
        if self.value.accumulating:
            raise ConfigurationError(
                f"State.{call}: {name!r} has gradients of an incomplete update, which would be lost if the world "
                f"changes; call {call}() only after a step() that returned True, that is, after all backward passes of "
                "an update"
            )

    def wait(self) -> None:
        self.value.wait_for()

    def commit(self) -> None:
        self.value.commit()
        self._committed = int(self.value.updates)

    def restore(self) -> None:
        self.value.rollback(self._committed)

    def hand_over(self, leaving: Collection[int]) -> None:
        self.value.hand_over(leaving)

    def offer(self) -> int:
        return self._committed

    def plan(self, offers: Sequence[int]) -> None:
        # An optimizer may update after the commit: one rank may have made that update, and another may not.
        self._planned = min(offers)

    def go_back(self, world: ProcessGroupContext) -> None:
        if world.former.ranks[world.config.place.rank] is not None:
            self.value.rollback(self._planned)

    def prepare(self, world: ProcessGroupContext) -> None:
        is_new = self._made_in is world and not world.former.survivors  # all ranks have constructed it in this world
        self._made_in = None
        if not is_new:
            self.value.prepare(world.group(), world.former.ranks)
            self._is_prepared = True

    def adopt(self) -> None:
        if self._is_prepared:
            self._is_prepared = False
            self.value.adopt()
            self.commit()

    def discard(self) -> None:
        if self._is_prepared:
            self._is_prepared = False
            self.value.discard()
