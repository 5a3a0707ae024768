"""Calls of host functions on JAX arrays: run at once if values are known, or inserted as callbacks under `jit`.

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
    """Call `function` on the host with the values `given` as numpy arrays; return its results as JAX arrays.

    `what`: name of the collective in errors. `ordered`: whether the call runs after all earlier ordered calls. While
    JAX traces, `shapes` is called for the shapes of the results, and `dtypes` are their dtypes. Raises
    ConfigurationError under `vmap`. The call in a compiled function raises ConfigurationError if a result does not have
    the shape that `shapes` returned.
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
                    f"{what}: the result has shape {result.shape}; the compiled function expected "
                    f"{compiled.shape}: under jit, all ranks need equal numbers of rows, and the world "
                    f"must have the same size as at compilation; call {what} outside of jit"
                )
        return results

    try:
        return list(io_callback(callback, expected, *given, ordered=ordered))
    except ValueError as error:
        if "vmap" not in str(error):
            raise
        raise ConfigurationError(
            f"{what} is called under vmap, where ranks cannot communicate for each example; call "
            f"{what} outside of vmap, on the whole batch"
        ) from error


def is_traced(values: Sequence[Any]) -> bool:
    """Return whether JAX is tracing: then `values` may be abstract arrays without numbers, and operations may be
    recorded instead of executed."""
    return any(isinstance(value, jax.core.Tracer) for value in (*values, jnp.zeros((), bool)))


def differentiable(
    forward: Callable[[Sequence[Any]], tuple[Sequence[Any], Sequence[Any]]],
    backward: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]],
    leaves: Sequence[Any],
) -> list[Any]:
    """Return the results of `forward(leaves)` as JAX values whose gradients `backward` computes.

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
