"""Hand arrays out of a graph, each as soon as it exists, and wait for what becomes of them, the last one first."""

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import tensorflow as tf

from ringtrain.adapter import Array, attached
from ringtrain.errors import RingtrainError
from ringtrain_tensorflow.calls import HOLD_IN_SESSION_S, host_call
from ringtrain_tensorflow.operation import add_node, out_of_graph_order


class BegunGraphPart(Protocol):
    """What becomes of a part."""

    def done(self) -> bool:
        """Whether the result is there."""

    def result(self) -> Sequence[Array]:
        """Wait for the result."""


@dataclass(frozen=True)
class FinishedGraphPart:
    """A result that is there already."""

    arrays: Sequence[Array]

    def done(self) -> bool:
        return True

    def result(self) -> Sequence[Array]:
        return self.arrays


# How often a graph waits for parts at most, and of how many bytes at least at a time.
WAITS, LEAST_WAITED_BYTES = 8, 1 << 20

Begin = Callable[[int, Sequence[Array]], BegunGraphPart]


@dataclass(frozen=True)
class GraphPartSurroundings:
    """What results are waited for in: `enter(look())`. `look`: looks at the variables `reads`, after what the
    program did to them before, and before what it does to them afterwards, whatever that waits for."""

    look: Callable[[], Any]
    enter: Callable[[Any], contextlib.AbstractContextManager[Any]]
    reads: Sequence[Any] = ()


AROUND_NOTHING = GraphPartSurroundings(lambda: None, contextlib.nullcontext)


@tf.autograph.experimental.do_not_convert
def streamed_call(
    name: str,
    begin: Begin,
    parts: Sequence[Sequence[Any]],
    outputs: tuple[Sequence[Any], Sequence[Any]],
    around: GraphPartSurroundings = AROUND_NOTHING,
) -> list[Any]:
    """Call `begin(number of the part, its arrays)` for each of `parts`, lists of tensors, and return all results,
    one after the other, as tensors of the given dtypes and shapes, `outputs`.

    In a graph a part is begun as soon as its tensors are there, whatever else goes on: `begin` must not block. A
    backward pass hands out the last part first, and so do some waits, one after the other: what needs the results
    of one, as the update of its variables, goes on while the next ones wait. The first wait is within `around`,
    which has looked before the first part is begun. `name`: of the place in the program. A run after one that
    failed on this rank in between raises RingtrainError, where other ranks may take what that one has begun for a
    part of this one.
    """
    if tf.executing_eagerly():
        flat = [tensor for part in parts for tensor in part]
        return host_call(
            functools.partial(_all_variables_at_once, begin, around, [len(part) for part in parts]), flat, *outputs
        )
    place, (dtypes, shapes) = _GraphPlace(name, begin, around), outputs
    # TensorFlow keeps reads of a variable behind the writes before them, and before the writes behind them.
    before = [_read_variable(variable) for variable in around.reads]
    with tf.device("/CPU:0"), out_of_graph_order(), tf.control_dependencies(before):
        opened = add_node(place.open, [], [])
    with tf.control_dependencies([opened]):
        for variable in around.reads:
            _read_variable(variable)
    with tf.device("/CPU:0"), out_of_graph_order():
        with tf.control_dependencies([opened]):
            begun = [add_node(functools.partial(place.begin, i), part, []) for i, part in enumerate(parts)]
        results: list[Any] = []
        for waited in _waits_for_graph_parts(parts):
            behind = len(dtypes) - len(results)
            places = slice(behind - sum(len(parts[index]) for index in waited), behind)
            wait = functools.partial(place.results, waited, is_first=not results)
            with tf.control_dependencies([*(begun[index] for index in waited), *(r.op for r in results[:1])]):
                waiting = host_call(wait, [], dtypes[places], shapes[places], HOLD_IN_SESSION_S)
            results = waiting + results
        return results


def _read_variable(variable: Any) -> Any:
    with tf.device(None):  # where the variable is
        return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype).op


def _waits_for_graph_parts(parts: Sequence[Sequence[Any]]) -> list[range]:
    """The parts that each wait is for, of some bytes; the last ones first."""
    sizes = [sum((t.shape.num_elements() or 0) * t.dtype.size for t in part) for part in parts]
    enough = max(sum(sizes) / WAITS, LEAST_WAITED_BYTES)
    waits, end, waited = [], len(parts), 0
    for index in reversed(range(len(parts))):
        waited += sizes[index]
        if waited >= enough or index == 0:
            waits.append(range(index, end))
            end, waited = index, 0
    return waits or [range(0)]


def _all_variables_at_once(
    begin: Begin, around: GraphPartSurroundings, lengths: Sequence[int], *arrays: Array
) -> list[Array]:
    given = iter(arrays)
    begun = [begin(index, [next(given) for _ in range(length)]) for index, length in enumerate(lengths)]
    with around.enter(around.look()):
        return [array for one in begun for array in one.result()]


@dataclass
class _GraphRuns:
    """What places have begun in their present runs in this world, and what was seen before."""

    begun: dict[str, dict[int, BegunGraphPart]] = field(default_factory=dict)
    seen: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _GraphPlace:
    """A call of a graph, which a run of the graph opens, hands parts to, and takes the results of."""

    name: str
    begin_part: Begin
    around: GraphPartSurroundings

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
        runs.seen[self.name] = self.around.look()
        return []

    def begin(self, index: int, *arrays: Array) -> list[Array]:
        self._runs().begun.setdefault(self.name, {})[index] = self.begin_part(index, arrays)
        return []

    def results(self, indices: Sequence[int], is_first: bool) -> list[Array]:
        runs = self._runs()
        begun = runs.begun[self.name]
        within = self.around.enter(runs.seen.pop(self.name)) if is_first else contextlib.nullcontext()
        try:
            with within:
                return [array for index in indices for array in begun.pop(index).result()]
        except BaseException:
            begun.clear()  # all ranks fail here, and go on together
            raise

    def _runs(self) -> _GraphRuns:
        return attached(_GraphRuns)
