"""Ordinary training scripts with Flax, its modules of linen and of nnx. `jax_oracle` runs them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen, nnx
from flax.training.train_state import TrainState
from jax_oracle import WIDTH, Run, numbers

# What takes longest here is compiling.
RUN_IN = {
    "framework": "ringtrain.jax",
    "ranks": [2],
    "env": {"XLA_FLAGS": "--xla_backend_optimization_level=0"},
    "needs": ["jax", "optax", "flax"],
    "judge": "jax_oracle.run",
}


class Mlp(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(1)(jnp.tanh(linen.Dense(8)(x)))


class Cnn(linen.Module):
    """Network with batch normalisation over the rows of its process."""

    @linen.compact
    def __call__(self, x, train=True):
        x = linen.Conv(4, (3, 3))(x.reshape(-1, 2, 3, 1))
        x = linen.BatchNorm(use_running_average=not train, momentum=0.8)(x)
        return linen.Dense(1)(jnp.tanh(x).reshape(len(x), -1))


class Block(linen.Module):
    """Block of a transformer, whose layers are computed again in the backward pass."""

    @linen.compact
    def __call__(self, x):
        x = linen.Dense(8)(x[..., None])
        attention = linen.remat(linen.MultiHeadDotProductAttention)(num_heads=2, use_bias=False)
        x = x + attention(linen.LayerNorm()(x))
        x = x + linen.Dense(8)(jax.nn.gelu(linen.Dense(16)(linen.LayerNorm()(x))))
        return linen.Dense(1)(x.mean(axis=1))


class Recurrent(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(1)(linen.RNN(linen.GRUCell(4))(x[..., None])[:, -1])


def begun(model, **more):
    return jax.jit(model.init)(jax.random.key(0, **more), jnp.zeros((2, WIDTH)))


def fitted(r, model, optimizer):
    def loss(variables, x, y):
        return jnp.mean((model.apply(variables, x) - y) ** 2)

    return r.fit(loss, begun(model), optimizer)


def test_linen_mlp(r: Run):
    return fitted(r, Mlp(), "adam")


def test_linen_transformer_block(r: Run):
    return fitted(r, Block(), "sgd")


def test_linen_rnn(r: Run):
    return fitted(r, Recurrent(), "sgd")


def test_linen_train_state(r: Run):
    @jax.jit
    def step(state, x, y):
        value, grads = r.value_and_grad(lambda params: jnp.mean((state.apply_fn(params, x) - y) ** 2))(state.params)
        return state.apply_gradients(grads=grads), r.mean(value)

    model = Mlp()
    state = TrainState.create(apply_fn=model.apply, params=begun(model, impl="rbg"), tx=optax.adamw(1e-2))
    for batch in r.data():
        state, _ = step(state, *batch)
    return state


def test_linen_cnn_with_batch_stats(r: Run):
    """Normalised by each rank's rows; running statistics are the mean of the ranks'."""
    model, optimizer = Cnn(), optax.sgd(0.05, momentum=0.9)
    variables = begun(model)

    def of_rank(params, _, x, y, stats):
        out, new = model.apply({"params": params, "batch_stats": stats}, x, mutable=["batch_stats"])
        return jnp.mean((out - y) ** 2), new["batch_stats"]

    @jax.jit
    def step(params, stats, state, x, y):
        def loss(params):
            by_rank = r.by_rank(lambda params, rank, x, y: of_rank(params, rank, x, y, stats))
            return by_rank(params, x, y)

        (_, new), grads = r.value_and_grad(loss, has_aux=True)(params)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), r.mean(new), state

    params, stats = variables["params"], variables["batch_stats"]
    state = optimizer.init(params)
    for batch in r.data():
        params, stats, state = step(params, stats, state, *batch)
    x, _ = next(numbers(9))
    return params, stats, model.apply({"params": params, "batch_stats": stats}, x, train=False)


class Net(nnx.Module):
    def __init__(self, rngs):
        self.first, self.last = nnx.Linear(WIDTH, 8, rngs=rngs), nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, x):
        return self.last(jnp.tanh(self.first(x)))


def test_nnx_with_gradients_reduced_behind(r: Run):
    """A module is changed in place under nnx.jit, which is the style of nnx."""
    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, x, y):
        value, grads = nnx.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
        optimizer.update(model, r.mean(grads))
        return r.mean(value)

    values = [step(model, optimizer, *batch) for batch in r.data()]
    return nnx.state(model, nnx.Param), values


def test_nnx_split(r: Run):
    """Taken apart, so that gradients leave while the backward pass runs."""
    graph, params, rest = nnx.split(Net(nnx.Rngs(0)), nnx.Param, ...)

    def loss(params, x, y):
        return jnp.mean((nnx.merge(graph, params, rest)(x) - y) ** 2)

    return r.fit(loss, params, jit=functools.partial(jax.jit, donate_argnums=0))


def test_linen_frozen_and_masked(r: Run):
    """The first layer, selected by its path, does not change."""
    model = Mlp()
    labels = jax.tree.map_with_path(lambda path, _: "frozen" if path[1].key == "Dense_0" else "trained", begun(model))
    tx = optax.multi_transform({"trained": optax.adam(1e-2), "frozen": optax.set_to_zero()}, labels)
    state = TrainState.create(apply_fn=model.apply, params=begun(model), tx=tx)

    @jax.jit
    def step(state, x, y):
        grads = r.grad(lambda params: jnp.mean((state.apply_fn(params, x) - y) ** 2))(state.params)
        return state.apply_gradients(grads=grads)

    for batch in r.data():
        state = step(state, *batch)
    kernel = np.asarray(state.params["params"]["Dense_0"]["kernel"])
    assert (kernel == np.asarray(begun(model)["params"]["Dense_0"]["kernel"])).all()
    return state
