"""Names by which ranks pair the collectives in their graphs. They are assigned when a graph is built.

A number assigned when an operation runs would pair the operations that run first on each rank. Ranks that run the same
program build their graphs in the same order, regardless of TensorFlow's threads.
"""

import re
import weakref
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import tensorflow as tf


@dataclass
class _TensorFlowGraphNames:
    """Counters that make the names in one graph unique. `path`: the functions and branches that contain the graph."""

    path: str
    dealt: Counter[str] = field(default_factory=Counter)
    within: Counter[str] = field(default_factory=Counter)

    def unique(self, name: str) -> str:
        number = self.dealt[name]
        self.dealt[name] += 1
        return f"{name}_{number}" if number else name


_graphs: Final[weakref.WeakKeyDictionary[Any, _TensorFlowGraphNames]] = weakref.WeakKeyDictionary()


def name_of_call(name: str | None, ignore_name_scope: bool = False) -> str | None:
    """Return the name by which ranks pair a call; None for an eager call without `name`, which gets a number later.

    In a graph names are unique: a repeated name gets a number, as with operations. The name scope is the prefix of the
    name, unless `ignore_name_scope`.
    """
    if tf.executing_eagerly():
        return name
    graph = tf.compat.v1.get_default_graph()
    names = _tensorflow_graph_names(graph)
    if name is None:
        return names.unique(f"{names.path}unnamed")
    scope = "" if ignore_name_scope else graph.get_name_scope()
    return names.unique(f"{names.path}{scope}/{name}" if scope else f"{names.path}{name}")


def name_of_gradient(name: str | None) -> str | None:
    """Return a name for the gradient of the call `name`, unique in the current graph; None for eager calls."""
    if name is None or tf.executing_eagerly():
        return None
    return _tensorflow_graph_names(tf.compat.v1.get_default_graph()).unique(f"{name}.gradient")


def _tensorflow_graph_names(graph: Any) -> _TensorFlowGraphNames:
    if graph not in _graphs:
        _graphs[graph] = _TensorFlowGraphNames(_path_of(graph))
    return _graphs[graph]


def _path_of(graph: Any) -> str:
    """Return the names of the functions and branches that contain `graph`, each with a slash; "" for a session's graph.

    A function that is called eagerly has its Python name, so that ranks may trace it a different number of times.
    TensorFlow's names of all others end with numbers that depend on everything that was built before.
    """
    outer = getattr(graph, "outer_graph", None)
    if outer is None:
        return ""
    is_function = type(graph).__name__ == "FuncGraph"
    name = re.sub(r"_\d+", "", graph.name) if graph.name.startswith("__") or not is_function else graph.name
    if is_function and tf.compat.v1.executing_eagerly_outside_functions():
        return f"{name}/"
    names = _tensorflow_graph_names(outer)
    number = names.within[name]
    names.within[name] += 1
    return f"{names.path}{name}_{number}/" if number else f"{names.path}{name}/"
