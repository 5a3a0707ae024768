"""Checks of pytrees as plain data: in checkpoints, and as values of an elastic state."""

import dataclasses
import functools
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax_collectives import x64

import ringtrain as rt
import ringtrain.jax as hvd
from ringtrain.checkpoint import Checkpoints, ShardedCheckpoints
from ringtrain.errors import ConfigurationError

# What takes longest here is compiling.
RUN_IN = {
    "framework": "ringtrain.jax",
    "ranks": [1, 3],
    "env": {"XLA_FLAGS": "--xla_backend_optimization_level=0"},
    "needs": ["jax", "optax"],
}


@functools.partial(jax.tree_util.register_dataclass, data_fields=["params", "step"], meta_fields=["apply"])
@dataclasses.dataclass(frozen=True)
class Trained:
    """Pytree like Flax's TrainState, with a function as a static part."""

    params: Any
    step: Any
    apply: Any


@dataclasses.dataclass(frozen=True, order=True)
class Alike:
    number: int

    def __repr__(self):
        return "same"


def tree(seed=0, apply=jnp.tanh):
    params = {"w": jnp.full((3, 2), seed + 0.5), "half": jnp.full(2, seed, "bfloat16"), "empty": jnp.zeros((0, 2))}
    return {
        "trained": Trained(params, seed, apply),
        "opt": optax.MultiSteps(optax.adamw(optax.linear_schedule(1.0, 0.1, 9)), 2).init(params),
        "keys": [jax.random.key(seed), jax.random.key(seed, impl="rbg"), jax.random.PRNGKey(seed)],
        "many": jax.random.split(jax.random.key(seed), 3),
        "host": (np.arange(4) + seed, np.float64(seed), None),
        "small": jnp.asarray([seed], "uint8"),
        "flag": seed > 0,
    }


def same(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for (path, one), other in zip(
        jax.tree_util.tree_flatten_with_path(found)[0], jax.tree.leaves(expected), strict=True
    ):
        name = jax.tree_util.keystr(path)
        assert isinstance(one, jax.Array) == isinstance(other, jax.Array), name
        if isinstance(one, jax.Array) and jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            assert jax.random.key_impl(one) == jax.random.key_impl(other), name
            one, other = jax.random.key_data(one), jax.random.key_data(other)
        one, other = np.asarray(one), np.asarray(other)
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes()), name


def test_trees_come_back_from_checkpoints():
    """Trees contain the state of optax, keys of both kinds, bfloat16, and a function; arrays may be read late."""
    expected = tree(1)
    with tempfile.TemporaryDirectory() as own:
        folder = Path(hvd.broadcast_object(own, 0))
        plain, sharded = Checkpoints(folder / "plain"), ShardedCheckpoints((folder / "sharded").as_uri())
        for checkpoints in (plain, sharded):
            checkpoints.save(3, {"tree": hvd.to_state_dict(expected)})
            same(hvd.from_state_dict(tree(0), checkpoints.latest().state["tree"]), expected)
        found = []
        sharded.latest(lambda state: found.append(hvd.from_state_dict(tree(0), state["tree"])))
        same(found[0], expected)
        hvd.barrier()


def test_what_is_kept_is_a_copy():
    """A buffer that is donated afterwards is not changed in it."""
    params = {"w": jnp.arange(1000.0)}
    kept = hvd.to_state_dict(params)
    jax.block_until_ready(jax.jit(lambda p: {"w": p["w"] * 2}, donate_argnums=0)(params))
    assert (kept["['w']"] == np.arange(1000)).all()
    with x64():
        wide = {"w": jnp.asarray(1 + 2**-40, "float64")}
        same(hvd.from_state_dict(wide, hvd.to_state_dict(wide)), wide)


def test_what_differs_is_named():
    """The error contains the path and both values."""
    kept = hvd.to_state_dict({"a": {"w": jnp.ones(2)}, "key": jax.random.key(0), "step": 3})
    cases = [
        ({"a": {"w": jnp.ones(2), "b": jnp.ones(1)}}, r"\['a'\]\['b'\] is in the tree, but not in the state"),
        ({"key": None}, r"\['key'\] is in the state, but not in the tree"),
        ({"a": {"w": jnp.ones(3)}}, r"\['a'\]\['w'\] is float32\[3\] in the tree and float32\[2\] in the state"),
        ({"a": {"w": jnp.ones(2, "bfloat16")}}, r"is bfloat16\[2\] in the tree and float32\[2\] in the state"),
        (
            {"key": jax.random.key(0, impl="rbg")},
            r"\['key'\] is a rbg key\[\] in the tree and a threefry2x32 key\[\]",
        ),
        ({"key": jnp.uint32(1)}, r"\['key'\] is uint32\[\] in the tree and a threefry2x32 key\[\] in the state"),
        ({"step": jnp.ones(2)}, r"\['step'\] is float32\[2\] in the tree and a number in the state"),
    ]
    whole = {"a": {"w": jnp.ones(2)}, "key": jax.random.key(0), "step": jnp.int32(0)}
    assert hvd.from_state_dict(whole, kept)["step"] == 3
    for changed, words in cases:
        with pytest.raises(ConfigurationError, match=words):
            hvd.from_state_dict({**whole, **changed}, kept)
    with pytest.raises(ConfigurationError, match=r"two leaves of the tree have the path \[same\]"):
        hvd.to_state_dict({Alike(1): 1, Alike(2): 2})
    with pytest.raises(ConfigurationError, match=r"\['f'\] is .*; expected an array or number"):
        hvd.to_state_dict({"f": jnp.tanh})


def test_a_state_goes_back_to_its_commit():
    """Trees contain a node that is not plain data, and a later step has reused their buffers."""
    taken = jax.jit(lambda params: jax.tree.map(lambda leaf: leaf + 1, params), donate_argnums=0)
    state = rt.elastic.State(plain=tree(1)["opt"], trained=tree(1)["trained"], key=jax.random.key(1), losses=[])
    for _ in range(2):
        state.trained = dataclasses.replace(state.trained, params=taken(state.trained.params), step=7)
        state.plain = taken(state.plain)
        state.key = jax.random.split(state.key)[0]
        state.losses.append(jnp.float32(1))
        state.restore()
        for name, expected in (("plain", tree(1)["opt"]), ("trained", tree(1)["trained"])):
            same(getattr(state, name), expected)
        same([state.key, state.losses], [jax.random.key(1), []])
    state.trained = dataclasses.replace(state.trained, step=8)
    state.save()
    state.trained = dataclasses.replace(state.trained, step=9)
    state.restore()
    assert state.trained.step == 8
    with pytest.raises(ConfigurationError, match=r"\.params\['w'\] is an object; expected an array or number"):
        rt.elastic.State(trained=Trained({"w": object(), "b": jnp.ones(1)}, 0, jnp.tanh))
