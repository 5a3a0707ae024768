"""Exchange between ranks of which gradients exist, so that all ranks reduce the same ones."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import tensorflow as tf

from ringtrain import ProcessSet
from ringtrain.adapter import NamedCollective, NamedReduction, attached, queue_of
from ringtrain.errors import ConfigurationError, MismatchError
from ringtrain_tensorflow.errors import as_tensorflow
from ringtrain_tensorflow.world_ops import may_run_in_later_world

# Kinds of gradients. None is not a kind.
_KINDS: Final = ("dense", "slices at int32", "slices at int64")
_Kinds = tuple[str | None, ...]
_Variables = tuple[str, ...]


@dataclass
class _AgreedGradients:
    """Counts of ranks that have each kind of gradient, stored for each call in a graph and its gradients."""

    known: dict[tuple[Any, str], dict[tuple[_Kinds, _Variables], Any]] = field(default_factory=dict)


def completed_gradients(
    name: str, grads: Sequence[Any], variables: Sequence[Any], process_set: ProcessSet
) -> list[Any]:
    """Return `grads` so that all ranks of `process_set` have the same ones to reduce. A missing gradient becomes zeros
    if another rank has it. IndexedSlices become a tensor if another rank has a tensor.

    `name`: name of the call, the same on all ranks. In every eager call, ranks exchange which gradients they have. For
    a graph they exchange it when the graph is built, once for each set of variables and gradients. In an elastic job,
    ranks of later worlds do not build the graph again, so a graph returns its gradients unchanged. Collective. Raises
    MismatchError on all ranks if their numbers of gradients differ.
    """
    if not grads or may_run_in_later_world():
        return list(grads)
    kinds = tuple(map(_gradient_kind_of, grads))
    if tf.executing_eagerly():
        counts = _gradient_counts(name, kinds, process_set)
    else:
        counts = _gradient_counts_once(name, kinds, tuple(map(unique_name_of, variables)), process_set)
    return [_completed_gradient(index, grad, variables[index], counts[:, index]) for index, grad in enumerate(grads)]


def _gradient_kind_of(grad: Any) -> str | None:
    if grad is None:
        return None
    return f"slices at {grad.indices.dtype.name}" if isinstance(grad, tf.IndexedSlices) else _KINDS[0]


def unique_name_of(variable: Any) -> str:
    """Return a name of `variable` that is unique in this process; empty if it is not a variable."""
    return str(getattr(getattr(variable, "_value", variable), "_unique_id", ""))


def _gradient_counts_once(name: str, kinds: _Kinds, variables: _Variables, process_set: ProcessSet) -> Any:
    """Return the result of `_gradient_counts` for a call in a graph. It is stored when the graph is first built, and
    used again when ranks rebuild the graph for other input shapes, which they do at different times."""
    known = attached(_AgreedGradients).known.setdefault((queue_of(process_set), name), {})
    if (kinds, variables) not in known:
        known[kinds, variables] = _gradient_counts(f"{name}.{len(known)}", kinds, process_set)
    return known[kinds, variables]


def _gradient_counts(name: str, kinds: _Kinds, process_set: ProcessSet) -> Any:
    """Return how many ranks have each kind of each gradient: shape (kinds, gradients). Collective."""
    own = np.array([[kind == given for given in kinds] for kind in _KINDS], np.int32)
    total = NamedReduction("Sum", process_set)
    try:
        with as_tensorflow():
            (counts,) = NamedCollective.allreduce(total, name, "gradients present").run([own])
    except MismatchError as error:
        raise MismatchError(
            f"{name}: ranks have different gradients ({sum(kind is not None for kind in kinds)} of {len(kinds)} on "
            f"this rank); every rank must build the same model, and the same graphs ({error})"
        ) from error
    return counts


def _completed_gradient(index: int, grad: Any, variable: Any, counts: Any) -> Any:
    dense, _, at_int64 = counts
    if grad is None and counts.any():
        if variable is None:
            raise ConfigurationError(
                f"gradient {index} is None on this rank, but not on every other rank; pass the variables to "
                "reduce_gradients, so that it uses zeros instead of None"
            )
        grad = tf.zeros_like(tf.convert_to_tensor(variable)) if dense else _no_rows(variable)
    if not isinstance(grad, tf.IndexedSlices):
        return grad
    if dense:
        return tf.convert_to_tensor(grad)
    wanted = tf.int64 if at_int64 else tf.int32
    return tf.IndexedSlices(grad.values, tf.cast(grad.indices, wanted), grad.dense_shape)


def _no_rows(variable: Any) -> Any:
    value = tf.convert_to_tensor(variable)
    return tf.IndexedSlices(tf.zeros_like(value[:0]), tf.zeros([0], tf.int32), tf.shape(value))
