"""Support for pytrees in `ringtrain.elastic.State`. The support is registered when this module is imported.

Pytrees of dicts, lists, tuples, named tuples and dataclasses are plain values of a state, and JAX arrays extend plain
data. `PytreeHandler` handles other pytrees, some parts of which are not data (the functions of Flax's `TrainState`).
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax

from ringtrain.adapter import join
from ringtrain.adapter.state import HandlerParticipant, broadcast_state
from ringtrain.elastic import Participant, StateExtension, StateHandler, register_extension
from ringtrain_jax.objects import JAX_VALUES
from ringtrain_jax.trees import filled_tree, to_state_dict


@dataclass(frozen=True)
class _CommittedPytree:
    """Copy of a tree at a commit: leaves and structure. It is immutable, so a deep copy returns the same object."""

    leaves: list[Any]
    structure: Any

    def __deepcopy__(self, _: Any) -> "_CommittedPytree":
        return self


class PytreeHandler(StateHandler):
    """Handler for pytrees with nodes of another library, such as Flax. The tree is replaced, never changed in place.

    A new rank's leaves are assigned by their paths: its tree must have the same paths.
    """

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        to_state_dict(value)  # raises for a leaf that cannot be sent to other ranks
        self.save()

    def set_value(self, value: Any) -> None:
        self.value = value  # takes effect with the next commit

    def save(self) -> None:
        leaves, structure = jax.tree.flatten(self.value)
        self._saved = _CommittedPytree([*map(copy.deepcopy, leaves)], structure)

    def restore(self) -> None:
        saved = self._saved
        self.value = jax.tree.unflatten(saved.structure, [*map(copy.deepcopy, saved.leaves)])

    def sync(self, root: int = 0) -> None:
        received = broadcast_state(to_state_dict(self.value), root, type(self.value).__name__)
        self.value = filled_tree(self.value, received, checks=False)


def _pytree_participants(left: Mapping[str, Any], values: Mapping[str, Any]) -> Mapping[str, Participant]:
    return {name: HandlerParticipant(PytreeHandler(value)) for name, value in left.items() if _has_arrays(value)}


def _has_arrays(value: Any) -> bool:
    return any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(value))


# Ranks join before a sync: ranks that still reduce get zeros from the others, and broadcasts fail at once.
register_extension(StateExtension(_pytree_participants, JAX_VALUES, join))
