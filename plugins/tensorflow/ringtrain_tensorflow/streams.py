"""Transfer of arrays from a running graph to Python, each as soon as it is computed, and return of the results."""

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
    """Interface of one part of a call that has started."""

    def done(self) -> bool:
        """Return whether the result is ready."""

    def result(self) -> Sequence[Array]:
        """Wait for the result."""


@dataclass(frozen=True)
class FinishedGraphPart:
    """Part of a call whose result is ready."""

    arrays: Sequence[Array]

    def done(self) -> bool:
        return True

    def result(self) -> Sequence[Array]:
        return self.arrays


# Maximum number of waits in a graph, and minimum number of bytes of each.
WAITS, LEAST_WAITED_BYTES = 8, 1 << 20

Begin = Callable[[int, Sequence[Array]], BegunGraphPart]


@dataclass(frozen=True)
class GraphPartSurroundings:
    """Context in which results are awaited: `enter(look())` returns it. `reads`: the variables that `look` reads, after
    all earlier writes of the program to these variables and before all later writes."""

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
    """Call `begin(index, arrays)` for each of `parts` (lists of tensors). Return the results of all parts as one list
    of tensors. `outputs`: a pair with the dtypes and the shapes of these results.

    In a graph a part is begun as soon as its tensors are ready, independent of other operations: `begin` must not
    block. A backward pass computes the last part first, so parts are awaited in that order: operations that need the
    results of a part, such as the update of its variables, run while other parts are still awaited. The first wait is
    within `around`, whose `look` runs before the first part is begun. `name`: name of the place in the program. If the
    previous run failed on this rank in between, other ranks may take its parts for those of this run: then
    RingtrainError is raised.
    """
    if tf.executing_eagerly():
        flat = [tensor for part in parts for tensor in part]
        return host_call(
            functools.partial(_all_variables_at_once, begin, around, [len(part) for part in parts]), flat, *outputs
        )
    place, (dtypes, shapes) = _GraphPlace(name, begin, around), outputs
    # TensorFlow orders reads of a variable after earlier writes and before later ones.
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
    with tf.device(None):  # on the variable's device
        return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype).op


def _waits_for_graph_parts(parts: Sequence[Sequence[Any]]) -> list[range]:
    """Divide `parts` into groups that are awaited together, each of a minimum size; return the last group first."""
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
    """State of running graphs in this world: parts that have started, and results of `look`, by name of the call."""

    begun: dict[str, dict[int, BegunGraphPart]] = field(default_factory=dict)
    seen: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _GraphPlace:
    """Call in a graph. Each run of the graph opens it, passes parts to it, and collects the results."""

    name: str
    begin_part: Begin
    around: GraphPartSurroundings

    def open(self) -> list[Array]:
        runs = self._runs()
        left = runs.begun.get(self.name, {})
        if under_way := sum(not one.done() for one in left.values()):
            raise RingtrainError(
                f"{self.name}: the last run of this graph failed on this rank while {under_way} of its gradients "
                "were being reduced, so other ranks could mix them up with gradients of this run; call shutdown() "
                "and init() on every rank, and resume from the last checkpoint"
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
            begun.clear()  # all ranks fail here, and continue together
            raise

    def _runs(self) -> _GraphRuns:
        return attached(_GraphRuns)
