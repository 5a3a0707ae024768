"""Adapter through which `ringtrain.elastic.State` commits and rolls back a DiLoCo."""

from typing import Protocol

from ringtrain.adapter.state import ElasticOptimizer, OptimizerParticipant


class SynchronizingOptimizer(ElasticOptimizer, Protocol):
    """Interface of an optimizer whose ranks synchronize after all of them have committed a step."""

    @property
    def undoable(self) -> int: ...

    def finish_commit(self, whole: bool) -> None: ...


class DiLoCoParticipant(OptimizerParticipant):
    """Adapter for `ringtrain.elastic.State`: synchronizes after commits, can undo an outer step of each fragment."""

    value: SynchronizingOptimizer

    @property
    def undoable(self) -> int:
        return self.value.undoable

    def finish_commit(self, is_planned: bool) -> None:
        self.value.finish_commit(whole=is_planned)
        self._committed = int(self.value.updates)
