"""Collectives on pytrees, with gradients. They work eagerly and under `jit`.

Gradients are those of the sum of all ranks' results, as in one process with all ranks' inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ringtrain import Average, ProcessSet, global_process_set
from ringtrain.adapter import (
    Array,
    NamedCollective,
    NamedReduction,
    allgather_gradient,
    allreduce_gradient,
    broadcast_gradient,
    join_after_updates,
    members,
)
from ringtrain.errors import ConfigurationError
from ringtrain_jax.calls import differentiable, host_call, is_traced


def allreduce(
    tree: Any,
    op: Any = None,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return `tree` with each leaf reduced over the ranks of `process_set`.

    `tree`: a pytree of arrays, of the same structure, shapes and dtypes on all ranks. `op`: Average (default), Sum,
    Adasum, Min, Max or Product; averages of integers are rounded towards zero. `name`: pairs this call with those of
    the other ranks (default: a counter at run time). `prescale_factor` multiplies the arrays before the reduction,
    `postscale_factor` the results. Raises ConfigurationError for wrong arguments and MismatchError if ranks disagree;
    under `jit`, JAX raises its JaxRuntimeError with that message.
    """
    how = NamedReduction.of(op, None, prescale_factor, postscale_factor, process_set)

    def run(*given: Array) -> list[Array]:
        return _by_dtype(given, name, lambda part, own, _: NamedCollective.allreduce(how, own).run(part))

    def forward(given: Sequence[Any]) -> tuple[list[Any], Sequence[Any]]:
        outputs = host_call("allreduce", run, given, lambda: _jax_shapes(given), _jax_dtypes(given))
        return outputs, [*given, *outputs] if how.op in ("Min", "Max", "Product") else ()

    def run_backward(*given: Array) -> list[Array]:
        count = len(given) // 3 if how.op in ("Min", "Max", "Product") else len(given)
        inputs, outputs = given[count : 2 * count], given[2 * count :]

        def reduced(part: Sequence[Array], own: str | None, places: Sequence[int]) -> list[Array]:
            before, after = ([kept[place] for place in places if kept] for kept in (inputs, outputs))
            return allreduce_gradient(part, before, after, how, own)

        return _by_dtype(given[:count], name, reduced)

    def backward(saved: Sequence[Any], grads: Sequence[Any]) -> list[Any]:
        return host_call("allreduce", run_backward, [*grads, *saved], lambda: _jax_shapes(grads), _jax_dtypes(grads))

    return _on_leaves(forward, backward, tree)


def allgather(tree: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Return `tree` with the rows of every rank in each leaf, in rank order.

    The number of rows may differ between ranks, but not under `jit`. The gradient of this rank's rows is the sum of all
    ranks' gradients for them.
    """

    def run(*given: Array) -> list[Array]:
        return NamedCollective.allgather(process_set, name).run(given)

    def forward(given: Sequence[Any]) -> tuple[list[Any], Sequence[Any]]:
        size = members(process_set)
        return host_call("allgather", run, given, lambda: _rows_times(size, given), _jax_dtypes(given)), ()

    def backward(_: Sequence[Any], grads: Sequence[Any]) -> list[Any]:
        rows = [leaf.shape[0] for leaf in leaves]

        def reduced(part: Sequence[Array], own: str | None, places: Sequence[int]) -> list[Array]:
            return allgather_gradient(part, [rows[i] for i in places], process_set, own, "Sum")

        def run_backward(*given: Array) -> list[Array]:
            return _by_dtype(given, name, reduced)

        return host_call("allgather", run_backward, grads, lambda: _jax_shapes(leaves), _jax_dtypes(grads))

    leaves = _pytree_leaves(tree)
    return _on_leaves(forward, backward, tree)


def broadcast(tree: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Return `tree` of `root_rank` (a rank of the world). Autodiff sums the gradients of the set on `root_rank`.

    `tree`: a pytree with the same structure, shapes and dtypes on all ranks.
    """

    def run(*given: Array) -> list[Array]:
        return NamedCollective.broadcast(root_rank, process_set, name).run(given)

    def forward(given: Sequence[Any]) -> tuple[list[Any], Sequence[Any]]:
        return host_call("broadcast", run, given, lambda: _jax_shapes(given), _jax_dtypes(given)), ()

    def reduced(part: Sequence[Array], own: str | None, _: Sequence[int]) -> list[Array]:
        return broadcast_gradient(part, root_rank, process_set, own, "Sum")

    def run_backward(*given: Array) -> list[Array]:
        return _by_dtype(given, name, reduced)

    def backward(_: Sequence[Any], grads: Sequence[Any]) -> list[Any]:
        return host_call("broadcast", run_backward, grads, lambda: _jax_shapes(grads), _jax_dtypes(grads))

    return _on_leaves(forward, backward, tree)


def alltoall(
    tree: Any, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Send `splits[i]` rows of each leaf to rank i of the set (default: equal parts); return the received rows, in rank
    order. With `splits`, which `jit` does not support, also return the number of rows from each rank. Gradients flow
    back to the ranks that sent the rows."""
    cut = None if splits is None else tuple(np.asarray(splits).tolist())

    def exchanged(given: Sequence[Array], parts: Sequence[float] | None) -> tuple[list[Array], Array]:
        done = [
            NamedCollective.alltoall(parts, process_set, None if name is None else f"{name}.{index}").run([array])
            for index, array in enumerate(given)
        ]
        return [rows for rows, _ in done], done[0][1]

    def run(*given: Array) -> list[Array]:
        received, counts = exchanged(given, cut)
        return received if cut is None else [*received, counts]

    def forward(given: Sequence[Any]) -> tuple[list[Any], Sequence[Any]]:
        if cut is not None and is_traced(given):
            raise ConfigurationError(
                f"alltoall: splits is {list(cut)} under jit, where the number of received rows is not "
                "known; pass None, or call alltoall outside of jit"
            )
        dtypes = _jax_dtypes(given) if cut is None else [*_jax_dtypes(given), np.int32]
        outputs = host_call("alltoall", run, given, lambda: _jax_shapes(given), dtypes)
        return outputs, outputs[len(given) :]

    def run_backward(*given: Array) -> list[Array]:
        grads, counts = given[: len(leaves)], given[len(leaves) :]
        return exchanged(grads, counts[0].tolist() if counts else None)[0]

    def backward(saved: Sequence[Any], grads: Sequence[Any]) -> list[Any]:
        own = [*grads[: len(leaves)], *saved]
        return host_call("alltoall", run_backward, own, lambda: _jax_shapes(leaves), _jax_dtypes(grads[: len(leaves)]))

    leaves, structure = _pytree_leaves(tree), jax.tree.structure(tree)
    results = differentiable(forward, backward, leaves) if leaves else []
    received = jax.tree.unflatten(structure, results[: len(leaves)])
    return received if cut is None else (received, results[-1] if results else np.array(cut, np.int32))


def reducescatter(
    tree: Any,
    op: Any = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return `tree` with this rank's rows of each reduced leaf (`op`: Average or Sum). If the number of rows is not a
    multiple of the number of ranks, the first ranks get one more. Autodiff gathers the gradients of all ranks."""
    how = NamedReduction.of_sums("reducescatter", op, prescale_factor, postscale_factor, process_set)

    def run(*given: Array) -> list[Array]:
        return NamedCollective.reducescatter(how, name).run(given)

    def forward(given: Sequence[Any]) -> tuple[list[Any], Sequence[Any]]:
        return host_call("reducescatter", run, given, lambda: _own_rows(process_set, given), _jax_dtypes(given)), ()

    def run_backward(*given: Array) -> list[Array]:
        factor = how.prescale * how.postscale / (members(process_set) if how.op == "Average" else 1)
        gathered = NamedCollective.allgather(process_set, name and f"{name}.gradient").run(given)
        return [np.asarray(grad * factor, grad.dtype) for grad in gathered]

    def backward(_: Sequence[Any], grads: Sequence[Any]) -> list[Any]:
        return host_call("reducescatter", run_backward, grads, lambda: _jax_shapes(leaves), _jax_dtypes(grads))

    leaves = _pytree_leaves(tree)
    return _on_leaves(forward, backward, tree)


def join() -> int:
    """Announce that this rank has no more data, and wait until all have done so; return the last rank to join.

    Meanwhile this rank contributes zeros to the others' sums and averages, eagerly or under `jit`. A HostOptimizer
    requires equally many updates on every rank; otherwise join raises MismatchError.
    """
    jax.effects_barrier()
    return join_after_updates()


def _on_leaves(forward: Any, backward: Any, tree: Any) -> Any:
    leaves = _pytree_leaves(tree)
    return jax.tree.unflatten(jax.tree.structure(tree), differentiable(forward, backward, leaves) if leaves else [])


def _pytree_leaves(tree: Any) -> list[Any]:
    return [jnp.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def _by_dtype(
    given: Sequence[Array],
    name: str | None,
    function: Callable[[Sequence[Array], str | None, Sequence[int]], Sequence[Array]],
) -> list[Array]:
    """Call `function(arrays, name, indices in `given`)` once for the arrays of each dtype, because a reduction has one
    dtype. Return the results in the order of `given`."""
    places: dict[str, list[int]] = {}
    for place, array in enumerate(given):
        places.setdefault(array.dtype.name, []).append(place)
    results: list[Array] = list(given)
    for dtype, own in places.items():
        own_name = name if name is None or len(places) == 1 else f"{name}.{dtype}"
        for place, result in zip(own, function([given[i] for i in own], own_name, own), strict=True):
            results[place] = result
    return results


def _jax_shapes(given: Sequence[Any]) -> list[tuple[int, ...]]:
    return [tuple(array.shape) for array in given]


def _jax_dtypes(given: Sequence[Any]) -> list[Any]:
    return [array.dtype for array in given]


def _rows_times(size: int, given: Sequence[Any]) -> list[tuple[int, ...]]:
    return [(shape[0] * size, *shape[1:]) if shape else () for shape in _jax_shapes(given)]


def _own_rows(process_set: ProcessSet, given: Sequence[Any]) -> list[tuple[int, ...]]:
    size, rank = members(process_set), process_set.rank() or 0
    return [(shape[0] // size + (rank < shape[0] % size), *shape[1:]) if shape else () for shape in _jax_shapes(given)]
