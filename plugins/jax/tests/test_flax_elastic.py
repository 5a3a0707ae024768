"""Scenarios of Flax in elastic worlds: what has parts that are no data is a value of the state, too."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen, nnx
from flax.training.train_state import TrainState
from frameworks.scenarios import forked_slots
from support.elastic_agent import pause

import ringtrain as rt
import ringtrain.jax as hvd

# What takes longest here is compiling.
RUN_IN = {
    "framework": "ringtrain.jax",
    "env": {"XLA_FLAGS": "--xla_backend_optimization_level=0"},
    "needs": ["jax", "optax", "flax"],
}

X = np.random.default_rng(0).normal(size=(8, 6)).astype("float32")


class Net(nnx.Module):
    def __init__(self, rngs: Any) -> None:
        self.dropout, self.last = nnx.Dropout(0.5, rngs=rngs), nnx.Linear(6, 1, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.last(self.dropout(x))


def train_state(seed: int) -> tuple[Any, Any]:
    model = linen.Dense(1)
    params = model.init(jax.random.key(seed), X)

    @jax.jit
    def step(state: Any) -> Any:
        grads = hvd.grad(lambda params: jnp.mean(state.apply_fn(params, X) ** 2))(state.params)
        return state.apply_gradients(grads=grads)

    return TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(0.1)), step


def module(seed: int) -> tuple[Any, Any]:
    @nnx.jit
    def change(model: Any) -> None:
        grads = hvd.allreduce(nnx.grad(lambda model: jnp.mean(model(X) ** 2))(model))
        nnx.update(model, jax.tree.map(lambda a, b: a - 0.1 * b, nnx.state(model, nnx.Param), grads))

    def step(model: Any) -> Any:
        change(model)
        return model

    return Net(nnx.Rngs(seed)), step


def trains(kind: str) -> dict[str, Any]:
    """Take six steps, report the fourth, from initial values of each rank; return the final values."""
    hvd.init()
    value, step = {"TrainState": train_state, "module": module}[kind](hvd.rank())
    state: Any = rt.elastic.State(trained=value)
    told = []

    @rt.elastic.run
    def train(state: Any) -> None:
        while state.committed < 6:
            if state.committed == 3 and not told:
                told.append(3)
                pause(3)
            state.trained = step(state.trained)
            state.commit()

    train(state)
    left = hvd.to_state_dict(state.trained)
    return {
        name: repr(value) if isinstance(value, dict) else np.asarray(value).tolist() for name, value in left.items()
    }


def _a_replaced_rank_leaves_no_trace(kind: str) -> None:
    found = []
    for is_killed in (False, True):
        with forked_slots(trains, 2, kind) as slots:
            assert slots.formed() == [3, 3]
            if is_killed:
                slots.replace(0)
                slots.form(1)
                assert slots.message(0) == 3
                slots.go_on(0)
            else:
                slots.go_on(0, 1)
            found += slots.results().values()
    assert all(one == found[0] for one in found), found


def test_a_train_state() -> None:
    _a_replaced_rank_leaves_no_trace("TrainState")


def test_a_module_of_nnx() -> None:
    _a_replaced_rank_leaves_no_trace("module")
