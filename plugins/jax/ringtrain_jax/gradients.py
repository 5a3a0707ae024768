"""Gradients of a function, averaged over all ranks during the backward pass.

Each parameter passes through an identity whose gradient rule passes the cotangent to the named queue of its process set
without waiting; the wait for all of them follows the backward pass. The cotangent is passed on by an unordered
callback, which runs as soon as JAX has it; the begin and end of a call are ordered callbacks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ringtrain import ProcessSet, global_process_set
from ringtrain.adapter import Array, NamedCollective, NamedReduction, attached, queue_of
from ringtrain.errors import ConfigurationError
from ringtrain_jax.calls import host_call, is_traced


def value_and_grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    op: Any = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[..., Any]:
    """Return `jax.value_and_grad(fun, argnums, has_aux)` with gradients reduced over `process_set`.

        @jax.jit
        def step(params, state, batch):
            loss, grads = hvd.value_and_grad(loss_of)(params, batch)
            updates, state = optimizer.update(grads, state, params)
            return optax.apply_updates(params, updates), state, loss

    Within `jit` each gradient is sent as soon as the backward pass has computed it, while the pass continues; the value
    is this rank's own. Without `jit`, or for a function that is compiled separately, gradients are sent after the
    backward pass. A parameter that this rank's `fun` does not use has zero gradients. `op`: Average (default) or Sum.
    Every rank makes the calls of a process set in the same order, with parameters of the same structure.
    """
    how = NamedReduction.of_sums("value_and_grad", op, 1.0, 1.0, process_set)
    places = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    def run(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        trained = [args[place] for place in places]
        paths, structure = jax.tree_util.tree_flatten_with_path(trained)
        names = [jax.tree_util.keystr(path) for path, _ in paths]
        (number,) = host_call(
            "value_and_grad", lambda: [_begin_gradient_call(process_set)], [], lambda: [()], [np.int32]
        )

        def submit(own_number: int, name: str, gradient: Array) -> None:
            _submit_jax_gradient(own_number, name, np.array(gradient), how)  # JAX reuses the memory after the callback

        def hooked(leaves: Sequence[Any]) -> Any:
            passed = [stream_gradient(leaf, number, name, submit) for leaf, name in zip(leaves, names, strict=True)]
            given = list(args)
            for place, value in zip(places, jax.tree.unflatten(structure, passed), strict=True):
                given[place] = value
            return fun(*given, **kwargs)

        leaves = [leaf for _, leaf in paths]
        try:
            value, marks = jax.value_and_grad(hooked, has_aux=has_aux)(leaves)
        except BaseException:
            _give_up_gradient_call(number, process_set)
            raise
        reduced = jax.tree.unflatten(structure, _reduced_jax_gradients(marks, names, number, how))
        return value, reduced[0] if isinstance(argnums, int) else tuple(reduced)

    return run


def grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    op: Any = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[..., Any]:
    """Return `jax.grad(fun, argnums, has_aux)` with reduced gradients, like `value_and_grad` without the value."""
    both = value_and_grad(fun, argnums, has_aux, op, process_set)

    def run(*args: Any, **kwargs: Any) -> Any:
        value, grads = both(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return run


@dataclass
class _GradientCalls:
    """Calls of `value_and_grad` in progress: submitted gradients by name, for each process set and call number."""

    begun: dict[tuple[Any, int], dict[str, Any]] = field(default_factory=dict)


def _jax_gradient_calls() -> _GradientCalls:
    return attached(_GradientCalls)


def _begin_gradient_call(process_set: ProcessSet) -> Array:
    """Register a new call and return its number: the lowest unused one, so that all ranks use the same
    gradient names."""
    begun, queue = _jax_gradient_calls().begun, queue_of(process_set)
    number = next(number for number in range(len(begun) + 1) if (queue, number) not in begun)
    begun[queue, number] = {}
    return np.asarray(number, np.int32)


def _give_up_gradient_call(number: Any, process_set: ProcessSet) -> None:
    """Release the number of a call that failed on every rank before it submitted a gradient."""
    key = (queue_of(process_set), -1 if is_traced([number]) else int(number))
    if not _jax_gradient_calls().begun.get(key, True):
        del _jax_gradient_calls().begun[key]


def _submit_jax_gradient(number: int, name: str, gradient: Array, how: NamedReduction) -> None:
    handles = _jax_gradient_calls().begun[queue_of(how.process_set), number]
    if name in handles:
        raise ConfigurationError(
            f"value_and_grad: the gradient of {name} was computed twice in one call, as under vmap; remove the vmap "
            "and use the mean loss of the batch"
        )
    handles[name] = NamedCollective.allreduce(how, f"{number}{name}", "gradient").begin([gradient])


def stream_gradient(leaf: Any, number: Any, name: str, submit: Callable[[int, str, Array], None]) -> Any:
    """Return `leaf` unchanged, but pass its gradient to `submit(number, name, gradient)` in the backward pass. `submit`
    must copy the gradient; JAX receives a placeholder of the same shape instead."""

    def hand_over(own_number: Array, gradient: Array) -> list[Array]:
        submit(int(own_number), name, gradient)
        return [np.zeros((), gradient.dtype)]

    @jax.custom_vjp
    def passed(value: Any, _: Any) -> Any:
        return value

    def backward(own_number: Any, gradient: Any) -> tuple[Any, None]:
        if not gradient.size:
            return gradient, None
        given = [own_number, gradient]
        (mark,) = host_call("value_and_grad", hand_over, given, lambda: [()], [gradient.dtype], ordered=False)
        return jnp.broadcast_to(mark, gradient.shape), None

    passed.defvjp(lambda value, own_number: (value, own_number), backward)
    return passed(leaf, number)


def _reduced_jax_gradients(marks: Sequence[Any], names: Sequence[str], number: Any, how: NamedReduction) -> list[Any]:
    """Wait for the reductions `how` of call `number`, and return the reduced gradients of the parameters `names`.

    `marks`: placeholders that JAX has instead of the gradients. Submits zeros for parameters without a gradient.
    """
    shapes, dtypes = [mark.shape for mark in marks], [mark.dtype for mark in marks]

    def wait(own_number: Array, *_: Array) -> list[Array]:
        key = (queue_of(how.process_set), int(own_number))
        for name, shape, dtype in zip(names, shapes, dtypes, strict=True):
            if name not in _jax_gradient_calls().begun[key]:
                _submit_jax_gradient(key[1], name, np.zeros(shape, dtype), how)
        handles = _jax_gradient_calls().begun.pop(key)
        return [handles[name].result()[0] for name in names]

    return host_call("value_and_grad", wait, [number, *submission_results(marks)], lambda: shapes, dtypes)


def submission_results(marks: Sequence[Any]) -> list[Any]:
    """Return one element of each non-empty placeholder in `marks`.

    JAX computes these elements only after the gradients were submitted, so an operation on them runs after that.
    """
    return [mark.reshape(-1)[0] for mark in marks if mark.size]
