"""Checks of ringtrain.jax.HostOptimizer: training is compared with optax in one process on the joined batch."""

import functools
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax_collectives import RANK, SIZE, error_of, x64
from jax_training import X, agree, loss_of, model, probed_loss, rows, stepped, traced, trained, trained_alone

import ringtrain as rt
import ringtrain.jax as hvd
from ringtrain.checkpoint import Checkpoints, ShardedCheckpoints
from ringtrain.errors import ConfigurationError
from ringtrain.optim import SGD, Adam, AdamW

# What takes longest here is compiling.
RUN_IN = [
    {
        "framework": "ringtrain.jax",
        "ranks": [3],
        "env": {"XLA_FLAGS": "--xla_backend_optimization_level=0"},
        "needs": ["jax", "optax"],
    },
    # Optimizers do not depend on the number of ranks, the parts of the state do.
    {
        "framework": "ringtrain.jax",
        "ranks": [1],
        "env": {"XLA_FLAGS": "--xla_backend_optimization_level=0"},
        "needs": ["jax", "optax"],
        "tests": [
            "test_eagerly",
            "test_a_training_goes_on_to_the_bit",
            "test_what_cannot_be",
        ],
    },
]


def host_step(optimizer, streams=True, loss=loss_of):
    def step(params, state, x, y):
        if streams:
            value, grads = optimizer.value_and_grad(loss)(params, x, y)
            updates, state = optimizer.update(grads, state)
        else:
            value, grads = jax.value_and_grad(loss)(params, x, y)
            updates, state = optimizer.update(grads, state, params)
        return optimizer.apply_updates(params, updates), state, value

    return step


def is_bias(path):
    return path.endswith("['b']")


def weights_only(params):
    return {name: {"w": True, "b": False} for name in params}


PAIRS = {
    "sgd": (lambda: hvd.HostOptimizer(SGD(lr=0.1, momentum=0.9)), optax.sgd(0.1, momentum=0.9)),
    "adam": (lambda: hvd.HostOptimizer(Adam(lr=1e-2)), optax.adam(1e-2)),
    "clipped": (
        lambda: hvd.HostOptimizer(Adam(lr=1e-2), clip_norm=0.1),
        optax.chain(optax.clip_by_global_norm(0.1), optax.adam(1e-2)),
    ),
    "accumulated": (
        lambda: hvd.HostOptimizer(Adam(lr=1e-2), accumulate=2),
        optax.MultiSteps(optax.adam(1e-2), 2),
    ),
    "groups": (
        lambda: hvd.HostOptimizer(
            AdamW(lr=1e-2, weight_decay=0.1), groups=[(AdamW(lr=1e-2, weight_decay=0.0), is_bias)]
        ),
        optax.adamw(1e-2, weight_decay=0.1, mask=weights_only),
    ),
    "unsharded": (lambda: hvd.HostOptimizer(Adam(lr=1e-2), sharded=False), optax.adam(1e-2)),
}
PLAIN_ADAM = optax.adam(1e-2)


def compared(make, peer, wrap=jax.jit, streams=(True,), params=None, rounding=2e-5):
    """Train once for each of `streams`, and return the last optimizer."""
    params = params or model()
    expected = trained_alone(jax.jit(stepped(peer, jax.value_and_grad)), params, peer)
    for way in streams:
        optimizer = make()
        agree(trained(wrap(host_step(optimizer, way)), rows(), params, optimizer), expected, rounding)
    return optimizer


def test_updates_are_those_of_optax():
    """Gradients are streamed from the backward pass, or passed whole; the state is distributed over the ranks."""
    for name, (make, peer) in PAIRS.items():
        optimizer = compared(make, peer, streams=(True, False))
        held = sum(hvd.allgather_object(optimizer.state_bytes))
        one = 4 * sum(leaf.size for leaf in jax.tree.leaves(model()))
        slots = 1 if name == "sgd" else 2
        assert held == slots * one * (SIZE if name == "unsharded" else 1), name


def test_eagerly():
    compared(*PAIRS["adam"], wrap=lambda step: step, streams=(True, False))


def test_remat_donated_buffers_and_x64():
    compared(*PAIRS["adam"], wrap=functools.partial(jax.jit, donate_argnums=(0, 1)), params=copied(model()))
    with x64():
        compared(*PAIRS["adam"], params=model("float64"), rounding=1e-10)


def copied(params):
    return jax.tree.map(jnp.array, params)


def test_parameters_of_numpy_are_what_jax_makes_of_them():
    """float64 and Python's floats are float32 in JAX; gradients are passed whole at first and, eagerly, in each
    step."""
    params, rate = {"w": np.full(3, 0.5), "b": 0.25}, 0.1

    def loss(p, x):
        return ((p["w"] * x).sum() + p["b"]) ** 2

    for wrap in (jax.jit, lambda step: step):
        optimizer = hvd.HostOptimizer(SGD(lr=rate))
        state, found = optimizer.init(params), params

        @wrap
        def step(found, state, x, optimizer=optimizer):
            _, grads = optimizer.value_and_grad(loss)(found, x)
            updates, state = optimizer.update(grads, state)
            return optimizer.apply_updates(found, updates), state

        expected = jax.tree.map(jnp.asarray, params)
        for x in np.arange(6.0).reshape(2, 3) / 6:
            found, state = step(found, state, x)
            grads = jax.grad(loss)(expected, x)
            expected = jax.tree.map(lambda leaf, grad: leaf - rate * grad, expected, grads)
        agree(found, expected)
        assert {leaf.dtype.name for leaf in jax.tree.leaves(found)} == {"float32"}


def test_halves_have_master_weights():
    """Ten steps whose changes are below the precision of bf16 add up, as in float32."""
    params = {"w": jnp.ones(4, "bfloat16")}
    optimizer = hvd.HostOptimizer(SGD(lr=1e-3))
    state = optimizer.init(params)
    for _ in range(10):
        _, grads = optimizer.value_and_grad(lambda p: p["w"].sum())(params)
        updates, state = optimizer.update(grads, state)
        params = optimizer.apply_updates(params, updates)
    np.testing.assert_allclose(np.asarray(params["w"], "float32"), 0.99, atol=0.004)


def test_a_loop_in_one_compiled_function():
    """scan over the batches."""
    make, peer = PAIRS["adam"]
    optimizer, (x, y) = make(), rows()
    state = optimizer.init(model())
    step = host_step(optimizer)

    @jax.jit
    def looped(params, state, x, y):
        return jax.lax.scan(lambda carry, batch: (step(*carry, *batch)[:2], None), (params, state), (x, y))[0]

    found, state = looped(optimizer.params(), state, jnp.asarray(x, "float32"), jnp.asarray(y, "float32"))
    agree(found, trained_alone(jax.jit(stepped(peer, jax.value_and_grad)), model(), peer))
    assert int(state) == optimizer.updates == len(X)


def test_what_a_program_makes_of_parameters_counts():
    """Halved after each step, in float32 and where the host has master weights."""
    halved = functools.partial(jax.tree.map, lambda leaf: leaf * jnp.asarray(0.5, leaf.dtype))

    def halving(step):
        def run(*given):
            params, *rest = step(*given)
            return halved(params), *rest

        return run

    for dtype, rounding in (("float32", 2e-5), ("bfloat16", 0.05)):
        expected = trained_alone(jax.jit(halving(stepped(PLAIN_ADAM, jax.value_and_grad))), model(dtype), PLAIN_ADAM)
        for streams in (True, False):
            optimizer = hvd.HostOptimizer(Adam(lr=1e-2))
            found = trained(jax.jit(halving(host_step(optimizer, streams))), rows(), model(dtype), optimizer)
            agree(found, expected, rounding)


def test_a_training_goes_on_to_the_bit():
    """Training continues bit by bit from a checkpoint of whole states, and from one of shards."""
    make, _ = PAIRS["clipped"]
    x, y = rows()
    whole = make()
    params, state = model(), whole.init(model())
    step = jax.jit(host_step(whole))
    with tempfile.TemporaryDirectory() as own:
        folder = Path(hvd.broadcast_object(own, 0))
        kept = {
            "state_dict": Checkpoints(folder / "plain"),
            "shard_dict": ShardedCheckpoints((folder / "s").as_uri()),
        }
        for index in range(len(x)):
            if index == 2:
                for part, checkpoints in kept.items():
                    checkpoints.save(2, {"optimizer": getattr(whole, part)()})
            params, state, _ = step(params, state, jnp.asarray(x[index]), jnp.asarray(y[index]))
        for checkpoints in kept.values():
            again = make()
            again.init(model())
            again.load_state_dict(checkpoints.latest().state["optimizer"])
            resumed, state = again.params(), again.state()
            assert int(state) == 2
            step = jax.jit(host_step(again))
            for index in (2, 3):
                resumed, state, _ = step(resumed, state, jnp.asarray(x[index]), jnp.asarray(y[index]))
            for one, other in zip(jax.tree.leaves(resumed), jax.tree.leaves(params), strict=True):
                assert np.asarray(one).tobytes() == np.asarray(other).tobytes()
        hvd.barrier()


def test_gradients_leave_while_the_backward_pass_runs():
    """The last layer's is on the host before the first layer's backward pass begins, by the timeline."""
    if SIZE == 1:
        return

    params = model(layers=8)
    optimizer = hvd.HostOptimizer(SGD(lr=0.1), bucket_bytes=1)
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, x):
        _, grads = optimizer.value_and_grad(probed_loss)(params, x)
        updates, state = optimizer.update(grads, state)
        return optimizer.apply_updates(params, updates), state

    x = jnp.asarray(X[0], "float32")
    params, state = jax.block_until_ready(step(params, state, x))
    begun, probe = traced(step, params, state, x)
    left = {name: at for (name, _), at in begun.items() if name.startswith("submit ")}
    assert left["submit ['layer7']['w']"] < probe < left["submit ['layer0']['w']"], (left, probe)


def test_what_cannot_be():
    """Each error describes a solution."""
    with pytest.raises(TypeError, match="unexpected keyword argument 'clip'"):
        hvd.HostOptimizer(Adam(lr=1e-2), clip=1.0)
    optimizer = hvd.HostOptimizer(Adam(lr=1e-2))
    params = {"a": jnp.ones(2)}
    with pytest.raises(ConfigurationError, match=r"call init\(params\) first"):
        optimizer.value_and_grad(lambda p: p["a"].sum())(params)
    state = optimizer.init(params)
    with pytest.raises(ConfigurationError, match="expected the tree that was passed to init"):
        optimizer.value_and_grad(lambda p: p["b"].sum())({"b": jnp.ones(2)})
    with pytest.raises(ConfigurationError, match=r"weight .* is float32\[3\]; expected float32"):
        optimizer.value_and_grad(lambda p: p["a"].sum())({"a": jnp.ones(3)})
    _, grads = optimizer.value_and_grad(lambda p: p["a"].sum())(params)
    with pytest.raises(rt.RingtrainError, match=r"update\(\) was not called with the gradients of"):
        optimizer.value_and_grad(lambda p: p["a"].sum())(params)
    updates, state = optimizer.update(grads, state)
    with pytest.raises(ConfigurationError, match="called twice with the same gradients"):
        optimizer.update(grads, state)
    with pytest.raises(ValueError, match="structure"):
        optax.apply_updates(params, updates)
    with pytest.raises(ConfigurationError, match="expected the result of update"):
        optimizer.apply_updates(params, params)
    examples = jnp.ones((3, 2))
    words = error_of(
        lambda: jax.vmap(lambda x: optimizer.value_and_grad(lambda p: (p["a"] * x).sum())(params))(examples)
    )
    assert "remove the vmap" in words


def test_ranks_that_differ_are_told():
    if SIZE == 1:
        return
    words = error_of(lambda: hvd.HostOptimizer(SGD(lr=0.1 + RANK)).init({"a": jnp.ones(2)}))
    assert "lr" in words, words
