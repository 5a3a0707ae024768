"""Run ordinary JAX scripts: on every rank with its own rows, and in one process on all rows.

A script gets a `Run` and returns a pytree. Rank 0 runs it once more as one process, on the joined batches; both end
with the same values, and all ranks with the same bits. Scripts that call `Run.fit` are also run with
`hvd.HostOptimizer`.
"""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax

import ringtrain.jax as hvd
from ringtrain.optim import SGD, Adam

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
STEPS, ROWS, WIDTH = 4, 12, 6  # rows divide by one, two and three ranks
OPTIMIZERS = {
    "adam": (optax.adam(1e-2), Adam(lr=1e-2)),
    "sgd": (optax.sgd(0.1, momentum=0.9), SGD(lr=0.1, momentum=0.9)),
}
# By what values may differ, for their dtype: sums over ranks are rounded otherwise.
ROUNDING = {"bfloat16": 0.05, "float16": 0.02, "float32": 5e-5, "float64": 1e-10}


def numbers(seed=0, steps=STEPS, rows=ROWS, width=WIDTH):
    """Batches of all ranks: x float32 (rows, width), y float32 (rows, 1)."""
    random = np.random.default_rng(seed)
    for _ in range(steps):
        x = random.normal(size=(rows, width)).astype("float32")
        yield x, np.sin(x.sum(axis=1, keepdims=True))


@dataclasses.dataclass
class Run:
    """`whole`: one process in the place of all ranks. `host`: the optimizer on the host."""

    whole: bool
    host: bool = False
    fitted: bool = False

    @property
    def value_and_grad(self):
        return jax.value_and_grad if self.whole else hvd.value_and_grad

    @property
    def grad(self):
        return jax.grad if self.whole else hvd.grad

    def mean(self, tree):
        return tree if self.whole else hvd.allreduce(tree)

    def gather(self, rows):
        return rows if self.whole else hvd.allgather(rows)

    def own(self, batch):
        """The rows of this process."""
        return batch if self.whole else jax.tree.map(lambda one: one[RANK::SIZE], batch)

    def data(self, batches=None):
        return map(self.own, numbers() if batches is None else batches)

    def by_rank(self, loss):
        """`loss(params, rank, *batch)` where it depends on who has which rows."""

        def whole(params, *batch):
            parts = [loss(params, rank, *(one[rank::SIZE] for one in batch)) for rank in range(SIZE)]
            return jax.tree.map(lambda *values: sum(values) / SIZE, *parts)

        return whole if self.whole else lambda params, *batch: loss(params, RANK, *batch)

    def fit(self, loss, params, optimizer="adam", batches=None, jit=jax.jit):
        """The loop that most scripts have; the parameters at its end."""
        self.fitted = True
        peer, rule = OPTIMIZERS[optimizer]
        own = hvd.HostOptimizer(rule) if self.host else peer
        apply = own.apply_updates if self.host else optax.apply_updates
        grads_of = own.value_and_grad if self.host else self.value_and_grad

        @jit
        def step(params, state, *batch):
            value, grads = grads_of(loss)(params, *batch)
            updates, state = own.update(grads, state, None if self.host else params)
            return apply(params, updates), state, self.mean(value)

        state, values = own.init(params), []
        for batch in self.data(batches):
            params, state, value = step(params, state, *batch)
            values.append(value)
        return params, values


def run(script, name):
    """Run and compare; an error names the value in which ranks differ."""
    expected = hvd.broadcast_object(plain(script(Run(whole=True))) if RANK == 0 else None)
    ways = [Run(whole=False)]
    for way in ways:
        found = plain(script(way))
        for other in hvd.allgather_object({name: one.tobytes() for name, one in found.items()}):
            assert other == {name: one.tobytes() for name, one in found.items()}, f"ranks differ in {name}"
        assert found.keys() == expected.keys()
        for name, value in found.items():
            assert (value.dtype, value.shape) == (expected[name].dtype, expected[name].shape), name
            bound = ROUNDING.get(value.dtype.name, 0)
            np.testing.assert_allclose(
                value.astype("float64"), expected[name].astype("float64"), bound, bound, err_msg=f"{way} {name}"
            )
        if way.fitted and not way.host:
            ways.append(Run(whole=False, host=True))


def plain(tree):
    return {name: np.asarray(leaf) for name, leaf in hvd.to_state_dict(tree).items()}


def mlp(seed=0, dtype="float32", sizes=(WIDTH, 8, 1)):
    random = np.random.default_rng(seed)
    return [
        {"w": jnp.asarray(random.normal(size=pair) / 2, dtype), "b": jnp.zeros(pair[1], dtype)}
        for pair in itertools.pairwise(sizes)
    ]


def forward(params, x):
    for index, layer in enumerate(params):
        x = x @ layer["w"] + layer["b"]
        x = x if index == len(params) - 1 else jnp.tanh(x)
    return x


def squares(params, x, y):
    return jnp.mean((forward(params, x) - y) ** 2)


def with_optax(r, optimizer, params=None, loss=squares, batches=None):
    """The loop with an optimizer of optax's own; parameters and the optimizer's state."""
    params = mlp() if params is None else params

    @jax.jit
    def step(params, state, *batch):
        grads = r.grad(loss)(params, *batch)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    state = optimizer.init(params)
    for batch in r.data(batches):
        params, state = step(params, state, *batch)
    return params, state
