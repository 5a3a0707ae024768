"""Functions of the host on JAX's arrays: called at once where values are known, as a callback where JAX traces.

What waits for other ranks is an ordered callback: JAX then runs such calls one after the other, in the order of
the program, in one compiled function and from one to the next. Ranks that run the same program meet.
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
    """Return `function(*arrays of given)` as JAX's arrays.

    `shapes`: of the results, asked where JAX traces. `what`: the collective, for errors. Known values: after all
    ordered callbacks before. Raises ConfigurationError under `vmap`, and where a result has another shape.
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
            f"{what} is called under vmap, where ranks can't meet for each example; call it outside of vmap, on "
            "the whole batch"
        ) from error


def is_traced(values: Sequence[Any]) -> bool:
    """Whether JAX traces: a value is not known, or an operation on known ones would not run now."""
    return any(isinstance(value, jax.core.Tracer) for value in (*values, jnp.zeros((), bool)))


def differentiable(
    forward: Callable[[Sequence[Any]], tuple[Sequence[Any], Sequence[Any]]],
    backward: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]],
    leaves: Sequence[Any],
) -> list[Any]:
    """Return the results of `forward(leaves)`, which also returns what `backward` needs.

    `backward(saved, grads)`: the gradients of all leaves; those of integers are not used.
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
