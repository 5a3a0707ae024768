"""Names of collectives in graphs, assigned when the graph is built.

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
    """Names assigned in one graph. `path`: the functions and branches that contain the graph."""

    path: str
    dealt: Counter[str] = field(default_factory=Counter)
    within: Counter[str] = field(default_factory=Counter)

    def unique(self, name: str) -> str:
        number = self.dealt[name]
        self.dealt[name] += 1
        return f"{name}_{number}" if number else name


_graphs: Final[weakref.WeakKeyDictionary[Any, _TensorFlowGraphNames]] = weakref.WeakKeyDictionary()


def name_of_call(name: str | None, ignore_name_scope: bool = False) -> str | None:
    """Return the name under which ranks pair a call: None eagerly without `name`; such a call is numbered when it runs.

    In a graph names are unique: a repeated name gets a number, like operations. The name scope is its prefix, unless
    `ignore_name_scope`.
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
    """Return the name for the gradient of the call `name`, in the graph that is being built for gradients."""
    if name is None or tf.executing_eagerly():
        return None
    return _tensorflow_graph_names(tf.compat.v1.get_default_graph()).unique(f"{name}.gradient")


def _tensorflow_graph_names(graph: Any) -> _TensorFlowGraphNames:
    if graph not in _graphs:
        _graphs[graph] = _TensorFlowGraphNames(_path_of(graph))
    return _graphs[graph]


def _path_of(graph: Any) -> str:
    """Return the functions and branches that contain `graph`, each with a slash; empty for a graph of a session.

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
