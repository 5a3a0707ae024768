"""Participant of a DiLoCo in an elastic state."""

from typing import Protocol

from ringtrain.adapter.state import ElasticOptimizer, OptimizerParticipant


class SynchronizingOptimizer(ElasticOptimizer, Protocol):
    """An optimizer whose ranks synchronize once all have committed a step."""

    @property
    def undoable(self) -> int: ...

    def finish_commit(self, whole: bool) -> None: ...


class DiLoCoParticipant(OptimizerParticipant):
    """Synchronize ranks after each commit; undo one outer step of each fragment."""

    value: SynchronizingOptimizer

    @property
    def undoable(self) -> int:
        return self.value.undoable

    def finish_commit(self, is_planned: bool) -> None:
        self.value.finish_commit(whole=is_planned)
        self._committed = int(self.value.updates)
