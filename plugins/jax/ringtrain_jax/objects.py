"""Broadcast and gather of Python objects, and broadcast of parameters, so that all ranks start equally."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from ringtrain import ProcessSet, adapter, global_process_set
from ringtrain.adapter import ForeignWireValues, NamedCollective, decode_value, encode_value
from ringtrain.errors import ConfigurationError, kind_of


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    allow_pickle: bool = False,
) -> Any:
    """Return the object of `root_rank` on every rank.

    Numbers, strings, bytes, None, containers of them, named tuples, dataclasses, arrays of numpy and JAX and keys of
    `jax.random` are sent as data that cannot execute code; any other object needs `allow_pickle=True` on every rank.
    Raises ConfigurationError on every rank if the root's object cannot be sent.
    """
    return adapter.broadcast_object(obj, root_rank, name, process_set, allow_pickle, JAX_VALUES)


def allgather_object(
    obj: Any,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    allow_pickle: bool = False,
) -> list[Any]:
    """Return every rank's object, in rank order. The same types as for `broadcast_object` are supported."""
    return adapter.allgather_object(obj, name, process_set, allow_pickle, JAX_VALUES)


def broadcast_parameters(params: Any, root_rank: int = 0, process_set: ProcessSet = global_process_set) -> Any:
    """Return the pytree `params` of `root_rank`: parameters, the state of an optax optimizer, keys of `jax.random`.

    `params`: a pytree with the same structure, shapes and dtypes on all ranks; leaves become JAX arrays. Do not call it
    under `jit`.
    """
    paths, structure = jax.tree_util.tree_flatten_with_path(params)
    begun = []
    for path, leaf in paths:
        name = f"parameters{jax.tree_util.keystr(path)}"
        if isinstance(leaf, jax.core.Tracer):
            raise ConfigurationError(
                f"broadcast_parameters: {name} is traced by jit; call broadcast_parameters outside of "
                "jit, or call broadcast() instead"
            )
        begun.append((leaf, NamedCollective.broadcast(root_rank, process_set, name).begin([_plain_leaf(leaf)])))
    received = [_like(leaf, promise.result()[0]) for leaf, promise in begun]
    return jax.tree.unflatten(structure, received)


def is_key(value: Any) -> bool:
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def _plain_leaf(leaf: Any) -> Any:
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else jnp.asarray(leaf))


def _like(leaf: Any, array: Any) -> Any:
    values = jnp.array(array)
    return jax.random.wrap_key_data(values, impl=jax.random.key_impl(leaf)) if is_key(leaf) else values


def _packed_pytree(value: Any) -> bytes:
    """Return the bytes of a JAX array. Raises ConfigurationError for other objects."""
    if not isinstance(value, jax.Array) or isinstance(value, jax.core.Tracer):
        raise ConfigurationError(f"{kind_of(value)} cannot be sent; expected a JAX array with a value")
    kind = str(jax.random.key_impl(value)) if is_key(value) else ""
    return encode_value((kind, _plain_leaf(value)))


def _unpacked_pytree(data: bytes) -> Any:
    kind, array = decode_value(data)
    values = jnp.array(array)
    return jax.random.wrap_key_data(values, impl=kind) if kind else values


JAX_VALUES: Final = ForeignWireValues(_packed_pytree, _unpacked_pytree)
