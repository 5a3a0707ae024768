"""Programs of the ranks in test_elastic.py.

Rows, weights and rates are such that every sum and mean over 1, 2 or 4 ranks is exact: bits do not depend on who
had which rows.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from support.elastic_agent import pause
from support.elastic_steps import call_first

import ringtrain as rt
import ringtrain.jax as hvd
from ringtrain.checkpoint import Checkpoints, ShardedCheckpoints

SAMPLES, STEPS = 64, 12
X = np.random.default_rng(3).integers(-2, 3, (SAMPLES, 6)).astype("float32")
Y = X.sum(axis=1, keepdims=True) - 1


@functools.partial(jax.tree_util.register_dataclass, data_fields=["params", "step"], meta_fields=["apply"])
@dataclasses.dataclass(frozen=True)
class Trained:
    """Pytree like Flax's TrainState, with a function as a static part."""

    params: Any
    step: Any
    apply: Callable[..., Any]


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Average:
    half: Any
    seen: Any


def forward(params: Any, x: Any) -> Any:
    return x @ params["layers"][0]["w"] + params["layers"][1]["b"]


def loss_of(params: Any, x: Any, y: Any, keep: Any, weight: Any) -> Any:
    """Return a loss whose gradients are means of small integers."""
    found = forward(params, x)
    error = jax.lax.stop_gradient(jnp.clip(jnp.round(found - y), -4, 4))
    return jnp.mean(error * found) * keep * weight


def begun(seed: int) -> Any:
    """Parameters that ranks begin with, each with its own."""
    return {"layers": [{"w": jnp.full((6, 1), seed, "float32")}, {"b": jnp.full(1, seed, "float32")}]}


def compiled(host: Any, optimizer: Any) -> Any:
    """A step with the optimizer of optax, or with `host` alone."""

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params: Any, opt_state: Any, keep: Any, x: Any, y: Any, weight: Any) -> Any:
        grads_of = host.value_and_grad if host else hvd.value_and_grad
        loss, grads = grads_of(loss_of)(params, x, y, keep, weight)
        updates, opt_state = optimizer.update(grads, opt_state, None if host else params)
        apply = host.apply_updates if host else optax.apply_updates
        return apply(params, updates), opt_state, hvd.allreduce(loss)

    return step


def trains(kind: str, told: tuple[int, ...]) -> dict[str, Any]:
    """Take STEPS steps, report those in `told`, and wait in them; return the final values as text."""
    hvd.init()
    params = begun(hvd.rank())
    host = hvd.HostOptimizer(rt.optim.SGD(lr=0.25, momentum=0.5), elastic=True) if kind == "host" else None
    optimizer: Any = host or optax.sgd(0.25, momentum=0.5)
    opt_state = optimizer.init(params)
    state: Any = rt.elastic.State(
        trained=Trained(None if host else params, jnp.asarray(0), forward),
        opt_state=opt_state,
        average=Average(jnp.zeros((6, 1), "bfloat16"), (jnp.asarray(0), None)),
        key=jax.random.key(hvd.rank(), impl="rbg"),
        old_key=jax.random.PRNGKey(7),
        losses=[],  # grows by arrays
        shard=rt.elastic.shard(SAMPLES, rt.elastic.FixedGlobal(16), seed=1),
        **({"optimizer": host} if host else {}),
    )

    step = compiled(host, optimizer)

    @rt.elastic.run
    def train(state: Any) -> None:
        params = host.params() if host else state.trained.params
        opt_state = host.state() if host else state.opt_state
        for _ in state.shard.epochs(100):
            for batch in state.shard:
                count = int(state.trained.step)
                if count == STEPS:
                    return
                pause(count, told)
                state.key, own = jax.random.split(state.key)
                state.old_key, other = jax.random.split(state.old_key)
                keep = jax.random.bernoulli(own, 0.8) & jax.random.bernoulli(other, 0.9)
                rows = X[batch.indices], Y[batch.indices]
                params, opt_state, loss = step(params, opt_state, keep, *rows, batch.weight)
                new = dataclasses.replace(state.trained, params=None if host else params, step=state.trained.step + 1)
                state.trained, state.opt_state = new, opt_state
                half = (state.average.half + params["layers"][0]["w"].astype("bfloat16")) / 2
                state.average = Average(half, (state.average.seen[0] + 1, None))
                state.losses.append(loss)
                state.commit()
                params, opt_state = (params, opt_state) if host else (state.trained.params, state.opt_state)

    train(state)
    left = hvd.to_state_dict(
        {
            "params": host.params() if host else state.trained.params,
            **{name: getattr(state, name) for name in ("opt_state", "average", "key", "old_key", "losses")},
            "step": state.trained.step,
        }
    )
    kinds = {name: type(getattr(state, name)).__name__ for name in ("trained", "opt_state", "average")}
    return {"left": {name: bits(value) for name, value in left.items()}, "kinds": kinds}


def bits(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: bits(one) for name, one in value.items()}
    return (value.dtype.name, value.shape, value.tobytes().hex()) if isinstance(value, np.ndarray) else value


def resumes(kind: str, folder: str, source: str, steps: int) -> dict[str, Any]:
    """Go on from the checkpoint in `source` of `folder`, if there is one, until `steps` are done; save that."""
    hvd.init()
    host = hvd.HostOptimizer(rt.optim.Adam(lr=0.25)) if kind == "host" else None
    optimizer: Any = host or optax.adam(optax.linear_schedule(0.25, 0.0, STEPS))
    params = hvd.broadcast_parameters(begun(hvd.rank()))
    opt_state = optimizer.init(params)
    key = jax.random.key(1, impl="rbg")
    tree: Any = {
        "params": params,
        "opt_state": opt_state,
        "average": Average(params["layers"][0]["w"], 0),
        "key": key,
    }
    tree["average"].half = tree["average"].half.astype("bfloat16")
    stores: dict[str, Any] = {
        "plain": Checkpoints(f"{folder}/plain"),
        "sharded": ShardedCheckpoints(f"file://{folder}/sharded"),
    }
    first = 0
    if saved := stores[source].latest():
        first, tree = saved.step, hvd.from_state_dict(tree, saved.state["tree"])
        if host:
            host.load_state_dict(saved.state["host"])
            tree |= {"params": host.params(), "opt_state": host.state()}
    step = compiled(host, optimizer)
    params, opt_state = tree["params"], tree["opt_state"]
    for count in range(first, steps):
        tree["key"], own = jax.random.split(tree["key"])
        rows = np.arange(SAMPLES).reshape(4, -1)[count % 4][hvd.rank() :: hvd.size()]
        keep = jax.random.bernoulli(own, 0.8)
        params, opt_state, _ = step(params, opt_state, keep, X[rows], Y[rows], 1.0)
        half = (tree["average"].half + params["layers"][0]["w"].astype("bfloat16")) / 2
        tree["average"] = Average(half, tree["average"].seen + 1)
    tree |= {"params": params, "opt_state": opt_state}
    left = hvd.to_state_dict(tree)
    for name, make in (("plain", "state_dict"), ("sharded", "shard_dict")):
        stores[name].save(steps, {"tree": left, "host": getattr(host, make)() if host else None})
    hvd.barrier()
    return {name: bits(value) for name, value in left.items()}


def calls_first(collective: str) -> list[int]:
    hvd.init()
    return call_first(hvd, jnp.ones, collective, lambda: rt.elastic.State(step=0, sizes=[]))
