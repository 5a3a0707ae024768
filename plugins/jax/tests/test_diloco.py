"""Checks of ringtrain.jax.DiLoCo: beside one process on the joined batch, and beside the one of plain arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax_collectives import RANK, SIZE
from jax_training import STEPS, agree, model, rows, stepped, trained_alone

import ringtrain as rt
import ringtrain.jax as hvd
from ringtrain import elastic
from ringtrain.errors import ConfigurationError
from ringtrain.optim import SGD, Nesterov

# What takes longest here is compiling.
RUN_IN = {
    "framework": "ringtrain.jax",
    "ranks": [1, 3],
    "env": {"XLA_FLAGS": "--xla_backend_optimization_level=0"},
    "needs": ["jax", "optax"],
}

INNER = jax.jit(stepped(optax.sgd(0.1), jax.value_and_grad))


def begun(**options):
    """Ranks begin with different parameters."""
    return hvd.DiLoCo(jax.tree.map(lambda leaf: leaf + RANK, model()), **options)


def gone_through(diloco, batches, params):
    state = optax.sgd(0.1).init(params)
    for x, y in zip(*batches, strict=True):
        params, state, _ = INNER(params, state, jnp.asarray(x), jnp.asarray(y))
        params = diloco.step(params)
    return params


def test_diloco_of_one_step_trains_like_one_process():
    """Synchronized after each step by the plain mean, it is synchronous SGD."""
    diloco = begun(outer=SGD(lr=1.0), sync_every=1)
    found = gone_through(diloco, rows(), diloco.params())
    agree(found, trained_alone(INNER, model(), optax.sgd(0.1)))


def test_diloco_is_that_of_plain_arrays():
    """Results equal those of the plain-array version, which other tests verify; also with overlap and after a
    restart."""
    for options in (
        {"sync_every": 3},
        {"sync_every": 2, "fragments": 2},
        {"sync_every": 3, "overlap_steps": 1, "mix": 0.5},
    ):
        diloco = begun(outer=Nesterov(lr=0.7), **options)
        paths, _ = jax.tree_util.tree_flatten_with_path(model())
        arrays = {jax.tree_util.keystr(path): np.array(leaf) for path, leaf in paths}
        plain = rt.optim.DiLoCo(arrays, outer=Nesterov(lr=0.7), **options)
        params, steps = diloco.params(), 0
        for restarted in (False, True):
            if restarted:
                state = diloco.state_dict()
                diloco = begun(outer=Nesterov(lr=0.7), **options)
                params = diloco.load_state_dict(state)
            for _ in range(STEPS):
                steps += 1
                params = diloco.step(jax.tree.map(lambda leaf: leaf + steps * (RANK + 1), params))  # noqa: B023
                for array in arrays.values():
                    array += steps * (RANK + 1)
                plain.step()
                assert [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(params)] == [
                    array.tolist() for array in arrays.values()
                ]
        params = diloco.finish(params)
        plain.finish()
        own = [np.asarray(leaf) for leaf in jax.tree.leaves(params)]
        for leaf, array in zip(own, arrays.values(), strict=True):
            np.testing.assert_array_equal(leaf, array)
        for other in rt.allgather_object([leaf.tolist() for leaf in own]):
            assert other == [leaf.tolist() for leaf in own]


def test_diloco_averages_within_sites():
    """A site of all but the last rank, and one of the last: at H = 1 by the mean gradient of all ranks."""
    sites = [list(range(SIZE - 1)), [SIZE - 1]] if SIZE > 1 else ()
    diloco = begun(outer=SGD(lr=1.0), sync_every=1, sites=sites)
    params = diloco.params()
    for step in range(1, 3):
        gradients = diloco.average(jax.tree.map(lambda leaf: jnp.full_like(leaf, step * (RANK + 1)), params))  # noqa: B023
        params = diloco.step(jax.tree.map(jnp.subtract, params, gradients))
    agree(params, jax.tree.map(lambda leaf: leaf - 3 * (SIZE + 1) / 2, model()))
    diloco.close()


def test_an_elastic_diloco_averages_at_commits():
    """And at no other step; what is committed is in `params()` and `inner`."""
    diloco = begun(outer=SGD(lr=1.0), sync_every=2, elastic=True, inner={"count": jnp.zeros(1)})
    state = elastic.State(diloco=diloco)
    state.sync()
    params, count = diloco.params(), diloco.inner["count"]
    for _ in range(3):
        count += 1
        params = diloco.step(jax.tree.map(lambda leaf: leaf - RANK - 1, params), inner={"count": count})
        if diloco.due:
            state.commit()
            params = diloco.params()
    with pytest.raises(ConfigurationError, match=r"step\(\) was called without the state of the inner optimizer"):
        diloco.step(params)
    state.restore()
    agree(diloco.params(), jax.tree.map(lambda leaf: leaf - (SIZE + 1), model()))
    agree(diloco.inner, {"count": jnp.full(1, 2.0)})
    diloco.close()


def test_parameters_of_numpy_are_what_jax_makes_of_them():
    """float64 and Python's floats, at first and at each step."""
    params = {"w": np.full(3, 0.5), "b": 0.25}
    diloco = hvd.DiLoCo(params, outer=SGD(lr=1.0), sync_every=2)
    for _ in range(2):
        params = diloco.step({"w": np.asarray(params["w"], "float64") - 1.0, "b": float(params["b"]) - RANK})
    agree(params, {"w": jnp.full(3, -1.5), "b": jnp.asarray(0.25 - (SIZE - 1))})
    diloco.close()


def test_what_diloco_refuses():
    diloco = begun()
    with pytest.raises(ConfigurationError, match="expected the tree with which DiLoCo was created"):
        diloco.step({"w": jnp.zeros(2)})
    with pytest.raises(ConfigurationError, match=r"layer0'\]\['b'\] is float16\[8\]; expected float32\[8\]"):
        diloco.step(jax.tree.map(lambda leaf: leaf.astype("float16"), model()))
    diloco.close()
