"""Host functions on JAX arrays: called at once if values are known, or as a callback while JAX traces.

Functions that wait for other ranks are ordered callbacks: JAX then runs such calls one after the other, in program
order, within one compiled function and across functions. Ranks that run the same program thus make the same calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from ringtrain.adapter import Array
from ringtrain.errors import ConfigurationError

Function = Callable[..., Sequence[Any]]
Shapes = Sequence[tuple[int, ...]]


def host_call(
    what: str,
    function: Function,
    given: Sequence[Any],
    shapes: Callable[[], Shapes],
    dtypes: Sequence[Any],
    ordered: bool = True,
) -> list[Any]:
    """Call `function` with the arrays of `given`; return JAX arrays.

    `shapes`: returns the shapes of the results; called while JAX traces. `what`: name of the collective in errors. With
    known values, an ordered call runs after all earlier ordered callbacks. Raises ConfigurationError under `vmap`, and
    if a result has another shape.
    """
    if not is_traced(given):
        if ordered:
            jax.effects_barrier()
        return [jnp.array(made) for made in function(*map(np.asarray, given))]
    expected = tuple(jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in zip(shapes(), dtypes, strict=True))

    def callback(*arrays: Any) -> Sequence[Array]:
        results = [np.asarray(made) for made in function(*map(np.asarray, arrays))]
        for result, compiled in zip(results, expected, strict=True):
            if result.shape != compiled.shape:
                raise ConfigurationError(
                    f"{what}: the result is {result.shape}, and the compiled function expected {compiled.shape}: "
                    "under jit every rank has as many rows, in a world of the size in which it was compiled; call "
                    "it outside of jit"
                )
        return results

    try:
        return list(io_callback(callback, expected, *given, ordered=ordered))
    except ValueError as error:
        if "vmap" not in str(error):
            raise
        raise ConfigurationError(
            f"{what} is called under vmap, where ranks cannot communicate for each example; call it outside of vmap, "
            "on the whole batch"
        ) from error


def is_traced(values: Sequence[Any]) -> bool:
    """Return whether JAX traces: a value is unknown, or an operation on known values would not run now."""
    return any(isinstance(value, jax.core.Tracer) for value in (*values, jnp.zeros((), bool)))


def differentiable(
    forward: Callable[[Sequence[Any]], tuple[Sequence[Any], Sequence[Any]]],
    backward: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]],
    leaves: Sequence[Any],
) -> list[Any]:
    """Return the results of `forward(leaves)`, which also returns the values that `backward` needs.

    `backward(saved, grads)`: returns the gradients of all leaves; those of integers are ignored.
    """

    @jax.custom_vjp
    def call(*given: Any) -> tuple[Any, ...]:
        return tuple(forward(given)[0])

    def run_forward(*given: Any) -> tuple[tuple[Any, ...], Any]:
        results, saved = forward(given)
        return tuple(results), tuple(saved)

    def run_backward(saved: Any, grads: Any) -> tuple[Any, ...]:
        real = [jnp.zeros(grad.shape, bool) if grad.dtype == jax.dtypes.float0 else grad for grad in grads]
        found = zip(leaves, backward(saved, real), strict=True)
        return tuple(_jax_cotangent(leaf, grad) for leaf, grad in found)

    call.defvjp(run_forward, run_backward)
    return list(call(*leaves))


def _jax_cotangent(leaf: Any, grad: Any) -> Any:
    if jnp.issubdtype(leaf.dtype, jnp.inexact):
        return grad
    return np.zeros(leaf.shape, jax.dtypes.float0)
