"""Checks of ringtrain.jax's gradients: whole trainings against one process on the joined batch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax_collectives import RANK, RANKS, SIZE, error_of, x64
from jax_training import X, agree, loss_of, model, probed_loss, rows, stepped, traced, trained, trained_alone

import ringtrain.jax as hvd

# What takes longest here is compiling.
RUN_IN = [
    {
        "framework": "ringtrain.jax",
        "ranks": [3],
        "env": {"XLA_FLAGS": "--xla_backend_optimization_level=0"},
        "needs": ["jax", "optax"],
    },
    # One rank: the loss compiled or not, and errors.
    {
        "framework": "ringtrain.jax",
        "ranks": [1],
        "env": {"XLA_FLAGS": "--xla_backend_optimization_level=0"},
        "needs": ["jax", "optax"],
        "tests": [
            "test_eagerly",
            "test_only_the_loss_is_compiled",
            "test_arguments_as_jax_has_them",
            "test_a_function_that_raises_leaves_nothing",
        ],
    },
]


def compared(optimizer, wrap, loss=loss_of, params=None, rounding=2e-5):
    params = params or model()
    expected = trained_alone(jax.jit(stepped(optimizer, jax.value_and_grad, loss)), params, optimizer)
    found = trained(wrap(stepped(optimizer, hvd.value_and_grad, loss)), rows(), params, optimizer)
    agree(found, expected, rounding)


OPTIMIZERS = {
    "sgd": optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adamw": optax.adamw(1e-2),
    "accumulated": optax.MultiSteps(optax.chain(optax.clip_by_global_norm(0.1), optax.adam(1e-2)), 2),
}


def test_a_training_is_that_of_one_process():
    """Optimizers of optax have their whole state on each rank."""
    for optimizer in OPTIMIZERS.values():
        compared(optimizer, jax.jit)


def test_eagerly():
    compared(OPTIMIZERS["sgd"], lambda step: step)


def test_only_the_loss_is_compiled():
    compared(OPTIMIZERS["sgd"], lambda step: step, jax.jit(loss_of))


def test_remat_and_donated_buffers():
    donated = functools.partial(jax.jit, donate_argnums=(0, 1))
    optimizer, checkpointed = OPTIMIZERS["adamw"], jax.checkpoint(loss_of)
    own = jax.tree.map(jnp.array, model())
    expected = trained_alone(jax.jit(stepped(optimizer, jax.value_and_grad)), model(), optimizer)
    agree(trained(donated(stepped(optimizer, hvd.value_and_grad, checkpointed)), rows(), own, optimizer), expected)


def test_x64():
    with x64():
        compared(OPTIMIZERS["adamw"], jax.jit, params=model("float64"), rounding=1e-10)


def test_halves():
    """Sums of bf16 are rounded once, as one process rounds them elsewhere."""
    compared(OPTIMIZERS["sgd"], jax.jit, params=model("bfloat16"), rounding=0.1)


def test_a_loop_in_one_compiled_function():
    """scan over the batches, each step with its collectives."""
    optimizer, (x, y) = OPTIMIZERS["adamw"], rows()

    @jax.jit
    def looped(params, state, x, y):
        step = stepped(optimizer, hvd.value_and_grad)
        return jax.lax.scan(lambda carry, batch: (step(*carry, *batch)[:2], None), (params, state), (x, y))[0]

    expected = trained_alone(jax.jit(stepped(optimizer, jax.value_and_grad)), model(), optimizer)
    agree(looped(model(), optimizer.init(model()), jnp.asarray(x, "float32"), jnp.asarray(y, "float32"))[0], expected)


def test_batches_of_other_lengths_compile_anew():
    """A batch of another length on one rank alone works, too."""
    step = jax.jit(hvd.grad(lambda w, x: (w * x).mean()))
    for counts in ([4] * SIZE, [4] * SIZE, [4 + rank for rank in RANKS], [2] * SIZE, [4] * SIZE):
        xs = [np.arange(counts[rank], dtype="float32") + rank for rank in RANKS]
        found = step(jnp.float32(1.0), jnp.asarray(xs[RANK]))
        np.testing.assert_allclose(found, np.mean([x.mean() for x in xs]), rtol=1e-6)


def test_arguments_as_jax_has_them():
    """argnums, has_aux and keywords; parameters that are not used, of no element, or used twice."""
    params = {"a": jnp.float32(2), "unused": jnp.ones(3), "empty": jnp.zeros((0,))}
    other = jnp.arange(3.0)

    def fun(params, factor, other, *, power):
        both = (params["a"] + other.sum()) * params["a"] * factor
        return both**power, {"factor": factor, "empty": params["empty"].sum()}

    def mean(params, other):
        return sum(fun(params, rank + 1.0, other, power=2)[0] for rank in RANKS) / SIZE

    expected = jax.grad(mean, (0, 1))(params, other)
    for way in (lambda f: f, functools.partial(jax.jit, static_argnames="power")):
        call = way(hvd.value_and_grad(fun, (0, 2), has_aux=True))
        (value, aux), grads = call(params, RANK + 1.0, other, power=2)
        assert (float(value), float(aux["factor"])) == (
            float(fun(params, RANK + 1.0, other, power=2)[0]),
            RANK + 1,
        )
        agree(grads, expected)
        first, _ = way(hvd.grad(fun, has_aux=True))(params, RANK + 1.0, other, power=2)
        agree(first, expected[0])
    summed = hvd.grad(lambda x: x * RANK, op=hvd.Sum)(1.0)
    assert float(summed) == sum(RANKS)


def test_a_parameter_that_one_rank_uses():
    """The others' gradient of it is zeros."""
    found = jax.jit(hvd.grad(lambda p: p["a"] * 3.0 + (p["b"] * 6.0 if RANK == 0 else 0.0)))({"a": 1.0, "b": 1.0})
    np.testing.assert_allclose([float(found["a"]), float(found["b"])], [3.0, 6.0 / SIZE], rtol=1e-6)


def test_calls_that_run_at_the_same_time():
    """Two of them in one function, of the same parameters, and a collective in the forward pass."""

    @jax.jit
    def both(w, x):
        def centred(w, x):
            return ((w * x - hvd.allreduce((w * x).mean())) ** 2).mean()

        return hvd.grad(centred)(w, x), hvd.grad(lambda w, x: (w * x).sum())(w, x)

    xs = [jnp.arange(4.0) + 3 * rank for rank in RANKS]

    def whole(w):
        mean = jnp.mean(jnp.stack([w * x for x in xs]))
        return sum(((w * x - mean) ** 2).mean() for x in xs) / SIZE

    first, second = both(jnp.float32(1.5), xs[RANK])
    np.testing.assert_allclose(first, jax.grad(whole)(1.5), rtol=1e-5)
    np.testing.assert_allclose(second, np.mean([x.sum() for x in xs]), rtol=1e-5)


def test_gradients_leave_while_the_backward_pass_runs():
    """The last layer's is on its way before the first layer's backward pass begins, by the timeline."""
    params = model(layers=8)
    step = jax.jit(hvd.value_and_grad(probed_loss))
    x = jnp.asarray(X[0], "float32")
    jax.block_until_ready(step(params, x))
    begun, probe = traced(step, params, x)
    left = {tid: at for (name, tid), at in begun.items() if name == "NEGOTIATE_ALLREDUCE"}
    before = {int(tid.split("layer")[1][0]) for tid, at in left.items() if at < probe}
    assert 7 in before, (left, probe)
    assert 0 not in before, (left, probe)


def test_an_error_on_one_rank_is_an_error_on_all():
    if SIZE == 1:
        return
    w = jnp.ones(2 + (RANK == 0))
    for way in (lambda f: f, jax.jit):
        words = error_of(lambda way=way: way(hvd.grad(lambda w: w.sum()))(w))
        assert "(3,)" in words, words
        assert "(2,)" in words, words
    assert float(jax.jit(hvd.grad(lambda x: x * 2.0))(1.0)) == 2.0


def test_a_function_that_raises_leaves_nothing():
    def bad(x):
        raise ValueError("own")

    for _ in range(2):
        for way in (lambda f: f, jax.jit):
            with pytest.raises(ValueError, match="own"):
                way(hvd.grad(bad))(1.0)
        assert float(hvd.grad(lambda x: x * 2.0)(1.0)) == 2.0
