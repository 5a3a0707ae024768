"""Hand arrays out of a graph, each as soon as it exists, and wait for what becomes of them once, at the end."""

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from ringtrain.collectives.tensors import Array
from ringtrain.process_groups import context
from ringtrain.tensorflow.calls import host_call
from ringtrain.tensorflow.operation import add_node

Wait = Callable[[], Sequence[Array]]
# Of a part's number, its arrays, and what its name ends with: begins what becomes of them, and returns the wait.
Begin = Callable[[int, Sequence[Array], str], Wait]


@tf.autograph.experimental.do_not_convert
def streamed_call(
    name: str, begin: Begin, parts: Sequence[Sequence[Any]], dtypes: Sequence[Any], shapes: Sequence[Any]
) -> list[Any]:
    """Call `begin` for each of `parts`, lists of tensors, and return what all waits return, one after the other,
    as tensors of the given dtypes and shapes.

    In a graph a part is begun as soon as its tensors are there, whatever else goes on: `begin` must not block. One
    wait follows all of them. `name`: of the place in the program, the same on all ranks.
    """
    if tf.executing_eagerly():
        flat = [tensor for part in parts for tensor in part]
        return host_call(
            functools.partial(_all_at_once, begin, [len(part) for part in parts]), flat, dtypes, shapes
        )
    place = _Place(name, begin)
    with tf.device("/CPU:0"):
        opened = add_node(place.open, [], [], in_program_order=False)
        with tf.control_dependencies([opened]):
            begun = [
                add_node(functools.partial(place.begin, index), part, [], in_program_order=False)
                for index, part in enumerate(parts)
            ]
        with tf.control_dependencies(begun):
            return host_call(place.results, [], dtypes, shapes)


def _all_at_once(begin: Begin, lengths: Sequence[int], *arrays: Array) -> list[Array]:
    given = iter(arrays)
    waits = [begin(index, [next(given) for _ in range(length)], "") for index, length in enumerate(lengths)]
    return [array for wait in waits for array in wait()]


@dataclass
class _Runs:
    """What places have begun in their present runs in this world, and how many runs were cut off."""

    begun: dict[str, dict[int, Wait]] = field(default_factory=dict)
    cut_off: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class _Place:
    """A call of a graph, which a run of the graph opens, hands parts to, and takes the results of.

    A run that fails in between leaves what it has begun to other ranks, and these may have begun more or less. The
    next run has other names, so that no rank takes an array of one run for that of another.
    """

    name: str
    begin_part: Begin

    def open(self) -> list[Array]:
        runs = self._runs()
        if runs.begun.get(self.name):
            runs.cut_off[self.name] += 1
        runs.begun[self.name] = {}
        return []

    def begin(self, index: int, *arrays: Array) -> list[Array]:
        runs = self._runs()
        number = runs.cut_off[self.name]
        wait = self.begin_part(index, arrays, f".after{number}" if number else "")
        runs.begun.setdefault(self.name, {})[index] = wait
        return []

    def results(self) -> list[Array]:
        begun = self._runs().begun.pop(self.name, {})
        return [array for index in sorted(begun) for array in begun[index]()]

    def _runs(self) -> _Runs:
        return context.current().attached(_Runs, _Runs)
