"""Conversion of a pytree to plain data by the paths of its leaves, and back: for checkpoints, and for states that are
sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ringtrain.errors import ConfigurationError, kind_of
from ringtrain_jax.objects import is_key

_NUMBERS = (bool, int, float, complex)
_NUMBER = "a number"
_KEY = {"impl", "data"}


def to_state_dict(tree: Any) -> dict[str, Any]:
    """Return the leaves of `tree` as numpy arrays by path, such as `['layer']['w']`, of the same shape and dtype.

        checkpoints.save(step, {"params": hvd.to_state_dict(params), "opt": hvd.to_state_dict(opt_state)})

    `tree`: any pytree whose leaves are arrays or Python numbers, which do not change: parameters, the state of an optax
    optimizer, a `TrainState` of Flax. A typed key of `jax.random` becomes its `impl` and `data`. Do not call it under
    `jit`. Raises ConfigurationError with the path of any other leaf.
    """
    return {name: _plain_tree_leaf(name, leaf) for name, leaf in _named_leaves(tree).items()}


def from_state_dict(tree: Any, state: Mapping[str, Any]) -> Any:
    """Return `tree` with the leaves from `to_state_dict`; `tree` itself does not change.

        params = hvd.from_state_dict(params, saved.state["params"])

    `state`: also of `ShardedCheckpoints.latest(load)`, whose arrays are then read here. Leaves of numpy in `tree`
    remain numpy's; all other arrays become JAX's. Raises ConfigurationError with the path if paths, shapes, dtypes or
    kinds of key differ; a number and an array of shape () are interchangeable.
    """
    return filled_tree(tree, state, checks=True)


def filled_tree(tree: Any, state: Mapping[str, Any], checks: bool) -> Any:
    """Return `tree` filled as by `from_state_dict`. Without `checks`, leaves take the shapes and dtypes of `state`."""
    own = _named_leaves(tree)
    for name in (*own, *state):
        if (name in own) != (name in state):
            where, other = ("the tree", "the state") if name in own else ("the state", "the tree")
            raise ConfigurationError(
                f"from_state_dict: {name or 'the leaf'} is in {where}, but not in {other}, which has "
                f"{', '.join([*(state if name in own else own)][:8]) or 'nothing'}; build the same "
                "tree as the saved one"
            )
    if checks:
        for name, leaf in own.items():
            _check_tree_leaf(name, leaf, state[name])
    return jax.tree.unflatten(jax.tree.structure(tree), [_like(leaf, state[name]) for name, leaf in own.items()])


def _named_leaves(tree: Any) -> dict[str, Any]:
    """Return the leaves of `tree` by path, in the tree's order. Raises ConfigurationError if two have the same path."""
    named: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        if (name := jax.tree_util.keystr(path)) in named:
            raise ConfigurationError(f"two leaves of the tree have the path {name}; use strings or numbers as keys")
        named[name] = leaf
    return named


def _plain_tree_leaf(name: str, leaf: Any) -> Any:
    if type(leaf) in _NUMBERS:
        return leaf
    if is_key(leaf):
        return {"impl": str(jax.random.key_impl(leaf)), "data": np.array(jax.random.key_data(leaf))}
    if isinstance(leaf, jax.Array | np.ndarray | np.generic):
        return np.array(leaf)  # a copy: a donated buffer may be reused
    raise ConfigurationError(f"to_state_dict: {name or 'the leaf'} is {kind_of(leaf)}; expected an array or number")


def _is_saved_key(saved: Any) -> bool:
    return isinstance(saved, Mapping) and set(saved) == _KEY


def _check_tree_leaf(name: str, leaf: Any, saved: Any) -> None:
    here, there = _described_tree_leaf(leaf), _described_tree_leaf(saved)
    if here != there and not (_is_scalar_leaf(leaf) and _is_scalar_leaf(saved) and _NUMBER in (here, there)):
        raise ConfigurationError(
            f"from_state_dict: {name or 'the leaf'} is {here} in the tree and {there} in the state; build the same "
            "tree as the saved one, and convert the result"
        )


def _is_scalar_leaf(value: Any) -> bool:
    return type(value) in _NUMBERS or (getattr(value, "shape", None) == () and not is_key(value))


def _described_tree_leaf(value: Any) -> str:
    if type(value) in _NUMBERS:
        return _NUMBER
    if _is_saved_key(value):
        return f"a {value['impl']} key{list(value['data'].shape[:-1])}"
    if is_key(value):
        return f"a {jax.random.key_impl(value)} key{list(value.shape)}"
    return f"{value.dtype.name}{list(value.shape)}" if hasattr(value, "dtype") else kind_of(value)


def _like(leaf: Any, saved: Any) -> Any:
    if type(saved) in _NUMBERS:
        return saved
    if _is_saved_key(saved):
        return jax.random.wrap_key_data(jnp.array(np.asarray(saved["data"])), impl=saved["impl"])
    values = np.array(saved)
    if isinstance(leaf, np.ndarray | np.generic):
        return values if isinstance(leaf, np.ndarray) else values[()]
    return jnp.array(values)
