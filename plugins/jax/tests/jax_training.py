"""A small model in JAX, its batches on each rank and its training in one process."""

import json
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax_collectives import RANK, SIZE

import ringtrain as rt
import ringtrain.jax as hvd

STEPS = 4
X = np.random.default_rng(1).normal(size=(STEPS, 2 * 3 * 2, 4))
Y = np.sin(X.sum(axis=2, keepdims=True))


def rows(steps=slice(None)):
    """This rank's part of the batches: they divide by one, two and three ranks."""
    return X[steps, RANK::SIZE], Y[steps, RANK::SIZE]


def model(dtype="float32", layers=3):
    sizes = [4, *[8] * (layers - 1), 1]
    rng = np.random.default_rng(7)
    return {
        f"layer{i}": {
            "w": jnp.asarray(rng.normal(size=sizes[i : i + 2]) / 2, dtype),
            "b": jnp.zeros(sizes[i + 1], dtype),
        }
        for i in range(layers)
    }


def forward(params, x):
    for index, (_, layer) in enumerate(sorted(params.items())):
        x = x @ layer["w"] + layer["b"]
        x = x if index == len(params) - 1 else jnp.tanh(x)
    return x


def loss_of(params, x, y):
    return jnp.mean((forward(params, x) - y.astype(x.dtype)) ** 2)


def stepped(optimizer, grads_of, loss=loss_of):
    def step(params, state, x, y):
        value, grads = grads_of(loss)(params, x, y)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    return step


def trained(make_step, batches, params, optimizer):
    state = optimizer.init(params)
    for x, y in zip(*batches, strict=True):
        params, state, _ = make_step(params, state, jnp.asarray(x), jnp.asarray(y))
    return params


def trained_alone(make_step, params, optimizer):
    """Train on rank 0 with the rows of all ranks. Return the parameters on each rank."""
    return hvd.broadcast_object(trained(make_step, (X, Y), params, optimizer) if RANK == 0 else None)


def agree(found, expected, rounding=2e-5):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for own, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert own.dtype == other.dtype
        np.testing.assert_allclose(np.asarray(own, float), np.asarray(other, float), rounding, rounding)


@jax.custom_vjp
def first_layer(x):
    """An identity whose backward pass is in the timeline."""
    return x


def note_backward(_, grad):
    def note(own):
        with rt.timeline.span("first layer", "backward"):
            return np.zeros((), own.dtype)

    return (grad + jax.experimental.io_callback(note, jax.ShapeDtypeStruct((), grad.dtype), grad),)


first_layer.defvjp(lambda x: (x, None), note_backward)


def probed_loss(params, x):
    first, *others = sorted(params)
    x = first_layer(jnp.tanh(x @ params[first]["w"] + params[first]["b"]))
    return jnp.mean(forward({name: params[name] for name in others}, x) ** 2)


def traced(step, *args):
    """This rank's timeline of `step(*args)`: begins by event and thread; when the first layer's backward pass has
    begun."""
    with tempfile.TemporaryDirectory() as folder:
        hvd.start_timeline(f"{folder}/trace.json")
        jax.block_until_ready(step(*args))
        jax.effects_barrier()
        hvd.stop_timeline()
        path = Path(folder) / ("trace.json" if RANK == 0 else f"trace-rank{RANK}.json")
        events = [event for event in json.loads(path.read_text()) if event["ph"] == "X"]
    begun = {(event["name"], str(event["tid"])): event["ts"] for event in events}
    (probe,) = [at for (name, _), at in begun.items() if name == "first layer"]
    return begun, probe
