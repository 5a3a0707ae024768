"""Ordinary training scripts with JAX and optax. `jax_oracle` runs them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax_oracle import (
    ROWS,
    SIZE,
    STEPS,
    WIDTH,
    Run,
    forward,
    mlp,
    numbers,
    squares,
    with_optax,
)

import ringtrain as rt
import ringtrain.jax as hvd

# What takes longest here is compiling.
RUN_IN = {
    "framework": "ringtrain.jax",
    "ranks": [2],
    "env": {"XLA_FLAGS": "--xla_backend_optimization_level=0"},
    "needs": ["jax", "optax"],
    "judge": "jax_oracle.run",
}


def test_mlp(r: Run):
    return r.fit(squares, mlp())


def test_rnn_by_scan(r: Run):
    params = {"in": mlp(1, sizes=(1, 4)), "state": mlp(2, sizes=(4, 4)), "out": mlp(3, sizes=(4, 1))}

    def loss(params, x, y):
        def cell(state, at):
            new = jnp.tanh(forward(params["in"], at[:, None]) + forward(params["state"], state))
            return new, None

        state, _ = jax.lax.scan(cell, jnp.zeros((len(x), 4)), x.T)
        return jnp.mean((forward(params["out"], state) - y) ** 2)

    return r.fit(loss, params)


def test_layers_stacked_for_scan_with_remat(r: Run):
    params = {"layers": jax.tree.map(lambda *one: jnp.stack(one), *(mlp(i, sizes=(6, 6))[0] for i in range(3)))}

    def loss(params, x, y):
        layer = jax.checkpoint(lambda x, own: (jnp.tanh(x @ own["w"] + own["b"]), None))
        return jnp.mean((jax.lax.scan(layer, x, params["layers"])[0].sum(1, keepdims=True) - y) ** 2)

    return r.fit(loss, params)


def test_a_loss_of_one_example_under_vmap(r: Run):
    def of_one(params, x, y):
        return jnp.sum((forward(params, x) - y) ** 2)

    return r.fit(lambda p, x, y: jax.vmap(of_one, (None, 0, 0))(p, x, y).mean(), mlp())


def test_an_ensemble_under_vmap(r: Run):
    models = jax.tree.map(lambda *one: jnp.stack(one), *(mlp(seed) for seed in range(3)))
    return r.fit(lambda ps, x, y: jax.vmap(squares, (0, None, None))(ps, x, y).sum(), models, "sgd")


def test_buffers_that_are_donated(r: Run):
    return r.fit(squares, mlp(), jit=functools.partial(jax.jit, donate_argnums=(0, 1)))


def test_batches_that_are_compiled_anew(r: Run):
    sizes = [ROWS, 6, ROWS, 18]
    return r.fit(squares, mlp(), batches=(next(numbers(seed, 1, rows)) for seed, rows in enumerate(sizes)))


def test_eagerly(r: Run):
    return r.fit(squares, mlp(), jit=lambda step: step)


def test_x64(r: Run):
    jax.config.update("jax_enable_x64", True)
    try:
        return r.fit(squares, mlp(dtype="float64"), batches=((x.astype(float), y.astype(float)) for x, y in numbers()))
    finally:
        jax.config.update("jax_enable_x64", False)


def test_parameters_in_bfloat16(r: Run):
    return with_optax(
        r,
        optax.sgd(0.1, momentum=0.9),
        mlp(dtype="bfloat16"),
        lambda params, x, y: squares(params, x.astype("bfloat16"), y.astype("bfloat16")),
    )


def test_mixed_precision(r: Run):
    def loss(params, x, y):
        half = jax.tree.map(lambda leaf: leaf.astype("bfloat16"), params)
        return jnp.mean((forward(half, x.astype("bfloat16")).astype("float32") - y) ** 2)

    params, _ = r.fit(loss, mlp(), "sgd")
    return jax.tree.map(lambda leaf: leaf.astype("bfloat16"), params)  # compared as that


def test_loss_scaling(r: Run):
    """A rank's rows overflow in one step, which no rank makes then."""

    @jax.jit
    def step(params, scale, x, y):
        def loss(params):
            half = jax.tree.map(lambda leaf: leaf.astype("float16"), params)
            return jnp.mean((forward(half, x.astype("float16")).astype("float32") - y) ** 2) * scale

        grads = jax.tree.map(lambda grad: grad / scale, r.grad(loss)(params))
        finite = jnp.all(jnp.stack([jnp.isfinite(grad).all() for grad in jax.tree.leaves(grads)]))
        new = jax.tree.map(lambda leaf, grad: jnp.where(finite, leaf - 0.1 * grad, leaf), params, grads)
        return new, jnp.where(finite, scale * 2, scale / 2)

    params, scale = mlp(), jnp.float32(1024)
    batches = [*numbers()]
    batches[1][1][0] = 1e30
    for batch in r.data(batches):
        params, scale = step(params, scale, *batch)
    return jax.tree.map(lambda leaf: leaf.astype("float16"), params), scale


def test_multi_steps(r: Run):
    return with_optax(r, optax.MultiSteps(optax.adam(1e-2), 2))


def test_a_schedule_and_clipping(r: Run):
    rate = optax.warmup_cosine_decay_schedule(0.0, 0.1, 2, STEPS)
    return with_optax(r, optax.chain(optax.clip_by_global_norm(0.3), optax.adamw(rate, weight_decay=0.1)))


def test_layers_that_are_frozen(r: Run):
    labels = [{"w": "frozen", "b": "frozen"}, {"w": "trained", "b": "trained"}]
    return with_optax(r, optax.multi_transform({"trained": optax.adam(1e-2), "frozen": optax.set_to_zero()}, labels))


def test_two_optimizers_by_label(r: Run):
    def labels(params):
        return jax.tree.map_with_path(lambda path, _: "bias" if path[-1].key == "b" else "weight", params)

    return with_optax(r, optax.multi_transform({"bias": optax.sgd(0.1), "weight": optax.lion(1e-2)}, labels))


def test_masked_decay(r: Run):
    def matrices(params):
        return jax.tree.map(lambda leaf: leaf.ndim > 1, params)

    return with_optax(
        r, optax.chain(optax.masked(optax.add_decayed_weights(0.1), matrices), optax.sgd(0.1, momentum=0.9))
    )


def test_averaged_weights(r: Run):
    params, state = mlp(), None
    optimizer, ema = optax.adam(1e-2), optax.ema(0.9)
    state, averages = optimizer.init(params), ema.init(params)

    @jax.jit
    def step(params, state, averages, *batch):
        updates, state = optimizer.update(r.grad(squares)(params, *batch), state, params)
        params = optax.apply_updates(params, updates)
        return params, state, ema.update(params, averages)[1]

    for batch in r.data():
        params, state, averages = step(params, state, averages, *batch)
    return params, state, averages


def test_lbfgs(r: Run):
    return with_optax(r, optax.lbfgs(0.1, memory_size=3, linesearch=None))[0]


def test_lbfgs_with_a_line_search(r: Run):
    """The line search uses the loss and the gradient of all ranks."""
    optimizer = optax.lbfgs(memory_size=3)

    def averaged(loss):
        @jax.custom_vjp
        def mean_loss(params):
            return hvd.allreduce(loss(params))

        def with_gradients(params):
            value, grads = hvd.value_and_grad(loss)(params)
            return hvd.allreduce(value), grads

        mean_loss.defvjp(with_gradients, lambda grads, by: (jax.tree.map(lambda grad: grad * by, grads),))
        return mean_loss

    @jax.jit
    def step(params, state, x, y):
        loss = functools.partial(squares, x=x, y=y)
        loss = loss if r.whole else averaged(loss)
        value, grads = optax.value_and_grad_from_state(loss)(params, state=state)
        updates, state = optimizer.update(grads, state, params, value=value, grad=grads, value_fn=loss)
        return optax.apply_updates(params, updates), state

    params = mlp()
    state = optimizer.init(params)
    for batch in r.data(numbers(steps=2)):
        params, state = step(params, state, *batch)
    return params


def test_metrics_beside_the_loss(r: Run):
    """has_aux, two arguments, and a mean of metrics."""

    @jax.jit
    def step(encoder, head, x, y):
        def loss(encoder, head):
            error = forward(head, jnp.tanh(forward(encoder, x))) - y
            return jnp.mean(error**2), {"absolute": jnp.abs(error).mean(), "right": (jnp.abs(error) < 1).mean()}

        (value, metrics), (grads, more) = r.value_and_grad(loss, argnums=(0, 1), has_aux=True)(encoder, head)
        descend = functools.partial(jax.tree.map, lambda leaf, grad: leaf - 0.1 * grad)
        return descend(encoder, grads), descend(head, more), r.mean({"loss": value, **metrics})

    encoder, head, seen = mlp(sizes=(WIDTH, 4)), mlp(1, sizes=(4, 1)), []
    for x, y in r.data():
        encoder, head, metrics = step(encoder, head, x, y)
        seen.append(metrics)
    return encoder, head, seen


def test_two_losses_in_a_step(r: Run):
    """A generator and its critic each have separate gradients and an optimizer."""
    critic, maker = mlp(1), mlp(2, sizes=(WIDTH, 8, WIDTH))
    optimizer = optax.sgd(0.05, momentum=0.5)

    @jax.jit
    def step(critic, maker, states, x, y):
        def of_critic(own):
            return jnp.mean((forward(own, x) - y) ** 2) + jnp.mean(forward(own, forward(maker, x)) ** 2)

        updates, first = optimizer.update(r.grad(of_critic)(critic), states[0])
        critic = optax.apply_updates(critic, updates)
        grads = r.grad(lambda own: jnp.mean((forward(critic, forward(own, x)) - 1) ** 2))(maker)
        updates, second = optimizer.update(grads, states[1])
        return critic, optax.apply_updates(maker, updates), (first, second)

    states = optimizer.init(critic), optimizer.init(maker)
    for batch in r.data():
        critic, maker, states = step(critic, maker, states, *batch)
    return critic, maker


def test_gradients_reduced_by_hand(r: Run):
    """jax.grad, and what the ranks have found is averaged behind it; accumulated in a scan over parts."""

    @jax.jit
    def step(params, x, y):
        def part(total, rows):
            return jax.tree.map(jnp.add, total, jax.grad(squares)(params, *rows)), None

        parts = x.reshape(2, -1, WIDTH), y.reshape(2, -1, 1)
        grads, _ = jax.lax.scan(part, jax.tree.map(jnp.zeros_like, params), parts)
        return jax.tree.map(lambda leaf, grad: leaf - 0.05 * grad, params, r.mean(grads))

    params = mlp()
    for batch in r.data():
        params = step(params, *batch)
    return params


def test_a_loss_over_the_rows_of_all_ranks(r: Run):
    """Contrastive: each row against the embeddings of the whole batch."""

    def loss(params, x, y):
        own, others = forward(params, x), r.gather(forward(params, x + y))
        near = r.gather(jnp.arange(len(x), dtype="float32") * 0 + x[:, 0])[None] == x[:, :1]
        return -jnp.mean(jnp.sum(jax.nn.log_softmax(own @ others.T) * near, axis=1))

    return r.fit(loss, mlp(sizes=(WIDTH, 8, 4)), "sgd")


def test_statistics_over_all_ranks(r: Run):
    """Batch normalisation by the means of the whole batch."""

    def loss(params, x, y):
        x = x @ params[0]["w"]
        mean = r.mean(x.mean(axis=0))
        variance = r.mean(((x - mean) ** 2).mean(axis=0))
        return jnp.mean((forward(params[1:], (x - mean) / jnp.sqrt(variance + 1e-3)) - y) ** 2)

    return r.fit(loss, mlp(), "sgd")


def test_dropout_by_rank(r: Run):
    """Each rank has separate masks: fold_in of its number into a typed key."""

    def loss(params, rank, x, y, step):
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), step[0]), rank)
        hidden = jnp.tanh(forward(params[:1], x))
        hidden *= jax.random.bernoulli(key, 0.5, hidden.shape) * 2.0
        return jnp.mean((forward(params[1:], hidden) - y) ** 2)

    batches = ((x, y, np.full(len(x), step)) for step, (x, y) in enumerate(numbers()))
    return r.fit(r.by_rank(loss), mlp(), "sgd", batches)


def test_embeddings_and_labels(r: Run):
    def loss(params, x, y):
        words = params["table"][(jnp.abs(x) * 4).astype("int32") % 10].mean(axis=1)
        labels = (y[:, 0] > 0).astype("int32")
        return optax.softmax_cross_entropy_with_integer_labels(forward(params["head"], words), labels).mean()

    table = jnp.asarray(np.random.default_rng(5).normal(size=(10, 4)), "float32")
    return r.fit(loss, {"table": table, "head": mlp(sizes=(4, 2))})


def test_a_loop_that_ends_by_the_loss(r: Run):
    """Collectives in the body of a while_loop, and one in a branch of a cond, which all ranks take."""
    x, y = r.own(next(numbers()))

    @jax.jit
    def train(params):
        def body(carry):
            params, _, step = carry
            value, grads = r.value_and_grad(squares)(params, x, y)
            params = jax.tree.map(lambda leaf, grad: leaf - 0.1 * grad, params, grads)
            value = jax.lax.cond(step % 2 == 0, r.mean, lambda _: jnp.float32(9), value)
            return params, value, step + 1

        return jax.lax.while_loop(lambda carry: (carry[1] > 0.35) & (carry[2] < 40), body, (params, 9.0, 0))

    return train(mlp())


def test_data_by_shard(r: Run):
    """`rt.data.shard` with a last batch that does not divide: its rows are weighed."""
    x, y = next(numbers(rows=4 * ROWS + 5))
    whole = rt.data.Shard(len(x), ROWS, 0, 1, 3, True, "weighted")
    step = jax.jit(
        lambda params, weight, *rows: jax.tree.map(
            lambda leaf, grad: leaf - 0.1 * grad,
            params,
            r.grad(lambda *all: squares(*all) * weight)(params, *rows),
        )
    )
    shard = rt.data.shard(len(x), ROWS // SIZE, seed=3, last="weighted")
    params = mlp()
    for part in (whole if r.whole else shard).epoch(0):
        params = step(params, part.weight, x[part.indices], y[part.indices])
    return params
