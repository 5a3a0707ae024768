"""Hand arrays out of a graph, each as soon as it exists, and wait for what becomes of them once, at the end."""

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import tensorflow as tf

from ringtrain._core.collectives.tensors import Array
from ringtrain._core.negotiation.arrays import result_of
from ringtrain._core.process_groups import context
from ringtrain.errors import RingtrainError
from ringtrain.tensorflow.calls import host_call
from ringtrain.tensorflow.operation import add_node


class BegunPart(Protocol):
    """What becomes of a part."""

    def done(self) -> bool:
        """Whether the result is there."""

    def result(self) -> Sequence[Array]:
        """Wait for the result."""


@dataclass(frozen=True)
class FinishedPart:
    """A result that is there already."""

    arrays: Sequence[Array]

    def done(self) -> bool:
        return True

    def result(self) -> Sequence[Array]:
        return self.arrays


Begin = Callable[[int, Sequence[Array]], BegunPart]
Around = Callable[[], contextlib.AbstractContextManager[Any]]


@tf.autograph.experimental.do_not_convert
def streamed_call(
    name: str,
    begin: Begin,
    parts: Sequence[Sequence[Any]],
    outputs: tuple[Sequence[Any], Sequence[Any]],
    around: Around = contextlib.nullcontext,
) -> list[Any]:
    """Call `begin(number of the part, its arrays)` for each of `parts`, lists of tensors, and return all results,
    one after the other, as tensors of the given dtypes and shapes, `outputs`.

    In a graph a part is begun as soon as its tensors are there, whatever else goes on: `begin` must not block. One
    wait follows all of them, within what `around` returns. `name`: of the place in the program. A run after one
    that failed on this rank in between raises RingtrainError, where other ranks may take what that one has begun
    for a part of this one.
    """
    if tf.executing_eagerly():
        flat = [tensor for part in parts for tensor in part]
        return host_call(
            functools.partial(_all_at_once, begin, around, [len(part) for part in parts]), flat, *outputs
        )
    place = _Place(name, begin, around)
    with tf.device("/CPU:0"):
        opened = add_node(place.open, [], [], in_program_order=False)
        with tf.control_dependencies([opened]):
            begun = [
                add_node(functools.partial(place.begin, index), part, [], in_program_order=False)
                for index, part in enumerate(parts)
            ]
        with tf.control_dependencies(begun):
            return host_call(place.results, [], *outputs)


def _all_at_once(begin: Begin, around: Around, lengths: Sequence[int], *arrays: Array) -> list[Array]:
    given = iter(arrays)
    begun = [begin(index, [next(given) for _ in range(length)]) for index, length in enumerate(lengths)]
    with around():
        return [array for one in begun for array in result_of(one)]


@dataclass
class _Runs:
    """What places have begun in their present runs in this world."""

    begun: dict[str, dict[int, BegunPart]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Place:
    """A call of a graph, which a run of the graph opens, hands parts to, and takes the results of."""

    name: str
    begin_part: Begin
    around: Around

    def open(self) -> list[Array]:
        runs = self._runs()
        left = runs.begun.get(self.name, {})
        if under_way := sum(not one.done() for one in left.values()):
            raise RingtrainError(
                f"{self.name}: the last run of this graph failed on this rank when {under_way} of its gradients "
                "were under way, and other ranks would take them for those of this run; shutdown() and init() on "
                "every rank, and go on from the last checkpoint"
            )
        runs.begun[self.name] = {}
        return []

    def begin(self, index: int, *arrays: Array) -> list[Array]:
        self._runs().begun.setdefault(self.name, {})[index] = self.begin_part(index, arrays)
        return []

    def results(self) -> list[Array]:
        begun = self._runs().begun.pop(self.name, {})
        with self.around():
            return [array for index in sorted(begun) for array in result_of(begun[index])]

    def _runs(self) -> _Runs:
        return context.current().attached(_Runs, _Runs)
