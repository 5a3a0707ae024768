"""Checks of ringtrain.jax's collectives, run on every rank of a world.

The reference is a simulated world: one process has the inputs of all ranks, and JAX differentiates the sum of what
all ranks make of the results.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax_collectives import RANK, RANKS, SIZE, error_of, x64

import ringtrain.jax as hvd

# What takes longest here is compiling.
RUN_IN = {
    "framework": "ringtrain.jax",
    "ranks": [1, 3],
    "env": {"XLA_FLAGS": "--xla_backend_optimization_level=0"},
    "needs": ["jax", "optax"],
}

ROOT = SIZE - 1
ROWS = 2 * SIZE + 1
FOLDS = {"Sum": jnp.sum, "Average": jnp.mean, "Min": jnp.min, "Max": jnp.max, "Product": jnp.prod}


def value(rank, rows=ROWS, dtype="float32"):
    """Small integers that differ by rank: sums and products of three of them are exact in every dtype."""
    return jnp.asarray((np.arange(rows * 2).reshape(rows, 2) * (rank + 1)) % 5 - 1, dtype)


def cut(x, parts=SIZE):
    return [jnp.asarray(part) for part in np.array_split(np.arange(len(x)), parts)]


def folds(op):
    return lambda xs: [FOLDS[op](jnp.stack(xs), axis=0) for _ in RANKS]


def scatters(op):
    return lambda xs: [folds(op)(xs)[0][rows] for rows in cut(xs[0])]


def exchanges(xs):
    return [jnp.concatenate([x[cut(x)[rank]] for x in xs]) for rank in RANKS]


# What ranks call, what the simulated world does, and the rows of a rank's input.
CASES = {
    **{op: (lambda x, op=op: hvd.allreduce(x, getattr(hvd, op)), folds(op), ROWS) for op in FOLDS},
    "factors": (
        lambda x: hvd.allreduce(x, hvd.Sum, prescale_factor=2.0, postscale_factor=0.5),
        folds("Sum"),
        ROWS,
    ),
    "allgather": (hvd.allgather, lambda xs: [jnp.concatenate(xs)] * SIZE, ROWS),
    "broadcast": (lambda x: hvd.broadcast(x, ROOT), lambda xs: [xs[ROOT]] * SIZE, ROWS),
    "alltoall": (hvd.alltoall, exchanges, 2 * SIZE),
    "reducescatter": (hvd.reducescatter, scatters("Average"), ROWS),
    "reducescatter Sum": (lambda x: hvd.reducescatter(x, hvd.Sum), scatters("Sum"), ROWS),
}


def scanned(f):
    def run(tree):
        once = jax.tree.map(lambda x: x[None], tree)
        return jax.tree.map(lambda x: x[0], jax.lax.scan(lambda _, own: (None, f(own)), None, once)[1])

    return run


WAYS = {
    "eager": lambda f: f,
    "jit": jax.jit,
    "scan": scanned,
}


def same(found, expected, case, rounding=1e-5):
    assert found.dtype == expected.dtype, (case, found.dtype, expected.dtype)
    assert found.shape == expected.shape, (case, found.shape, expected.shape)
    np.testing.assert_allclose(
        np.asarray(found, np.float64), np.asarray(expected, np.float64), rounding, rounding, err_msg=str(case)
    )


def of_rank(result, rank):
    """A loss that weighs results by rank and place, so that a gradient of the wrong one shows."""
    weights = jnp.arange(1, result.size + 1, dtype=result.dtype).reshape(result.shape) % 4
    return (result * weights * (rank + 1)).sum()


def compared(dtype, rounding, ways=tuple(WAYS)):
    """All cases in one function, as compiling takes longest here."""
    xs = [{case: value(rank, rows, dtype) for case, (_, _, rows) in CASES.items()} for rank in RANKS]

    def real(mine):
        return {case: call(mine[case]) for case, (call, _, _) in CASES.items()}

    def world(xs):
        by_case = {case: simulated([own[case] for own in xs]) for case, (_, simulated, _) in CASES.items()}
        return [{case: results[rank] for case, results in by_case.items()} for rank in RANKS]

    def loss(results, rank):
        return sum(of_rank(result, rank) for result in results.values())

    expected = jax.jit(world)(xs)[RANK]
    grads = jax.jit(jax.grad(lambda xs: sum(map(loss, world(xs), RANKS))))(xs)[RANK]
    for way in ways:
        wrapped = WAYS[way](real)
        found, pull = jax.vjp(wrapped, xs[RANK])
        (own,) = pull(jax.grad(lambda results: loss(results, RANK))(found))
        for case in CASES:
            same(found[case], expected[case], (case, way), rounding)
            same(own[case], grads[case], (case, way, "gradient"), rounding)


def test_results_and_gradients_are_those_of_a_simulated_world():
    """Eagerly, in jit, and in scan; the gradient outside and inside."""
    compared("float32", 1e-5)


def test_halves():
    compared("bfloat16", 4e-2, ("jit",))


def test_x64():
    with x64():
        compared("float64", 1e-12, ("jit",))
        big = jnp.asarray([2**60 + 1, RANK], "int64")
        assert jax.jit(lambda x: hvd.allreduce(x, hvd.Max))(big).tolist() == [2**60 + 1, SIZE - 1]


def test_a_tree_is_reduced_whole():
    """Leaves of several dtypes, scalars and empty ones among them; integers have no gradient and pass."""
    tree = {
        "w": value(RANK),
        "half": value(RANK, dtype="bfloat16"),
        "more": (jnp.float32(RANK), jnp.zeros((0, 3)), None, 2 * RANK),
        "count": jnp.arange(3) + RANK,
    }
    total = sum(RANKS)
    for way in (lambda f: f, jax.jit):
        for name in (None, "tree"):
            found = way(lambda tree, name=name: hvd.allreduce(tree, hvd.Sum, name))(tree)
            assert jax.tree.structure(found) == jax.tree.structure(tree)
            same(found["w"], sum(value(rank) for rank in RANKS), way)
            same(found["half"], sum(value(rank, dtype="bfloat16") for rank in RANKS), way)
            assert (float(found["more"][0]), found["more"][1].shape) == (total, (0, 3))
            assert (int(found["more"][3]), found["count"].tolist()) == (
                2 * total,
                [total, SIZE + total, 2 * SIZE + total],
            )
    assert hvd.allreduce({}) == {}
    mixed = jax.grad(lambda x: hvd.allreduce({"x": x, "count": jnp.arange(2)}, hvd.Sum)["x"] * (RANK + 1))
    assert float(mixed(2.0)) == sum(rank + 1 for rank in RANKS)


def test_rows_that_differ():
    """Eagerly; under jit the shapes are known before, and what differs is an error."""
    mine = [value(rank, 2**rank) for rank in RANKS]
    same(hvd.allgather(mine[RANK]), jnp.concatenate(mine), "allgather")
    grads = jax.grad(lambda x: of_rank(hvd.allgather(x), RANK))(mine[RANK])
    expected = jax.grad(lambda xs: sum(of_rank(jnp.concatenate(xs), rank) for rank in RANKS))(mine)
    same(grads, expected[RANK], "gradient")
    if SIZE > 1:
        assert "under jit, all ranks need equal numbers of rows" in error_of(lambda: jax.jit(hvd.allgather)(mine[RANK]))


def test_alltoall_with_splits():
    """Rank r sends i + 1 rows to rank i, and gets r + 1 of each; gradients go the way back."""
    splits, rows = [rank + 1 for rank in RANKS], sum(RANKS) + SIZE
    xs, ends = [value(rank, rows) for rank in RANKS], np.cumsum([0, *splits])

    def simulated(xs):
        return [jnp.concatenate([x[ends[r] : ends[r + 1]] for x in xs]) for r in RANKS]

    received, counts = hvd.alltoall(xs[RANK], splits)
    same(received, simulated(xs)[RANK], "rows")
    assert counts.tolist() == [RANK + 1] * SIZE
    own = jax.grad(lambda x: of_rank(hvd.alltoall(x, splits)[0], RANK))(xs[RANK])
    expected = jax.grad(lambda xs: sum(map(of_rank, simulated(xs), RANKS)))(xs)
    same(own, expected[RANK], "gradient")
    assert "under jit" in error_of(lambda: jax.jit(lambda x: hvd.alltoall(x, splits))(xs[RANK]))


def test_process_sets():
    sets = [hvd.add_process_set([rank for rank in RANKS if rank % 2 == odd]) for odd in (0, 1) if odd < SIZE]
    mine = sets[RANK % 2]
    own = [rank for rank in RANKS if rank % 2 == RANK % 2]
    for way in (lambda f: f, jax.jit):
        found = way(lambda x: hvd.allreduce(x, hvd.Sum, process_set=mine))(value(RANK))
        same(found, sum(value(rank) for rank in own), way)
        same(
            way(lambda x: hvd.allgather(x, process_set=mine))(value(RANK, 1)),
            jnp.concatenate([value(r, 1) for r in own]),
            way,
        )
        same(way(hvd.grad(lambda x: x * RANK, process_set=mine))(1.0), jnp.float32(np.mean(own)), way)
    for other in sets:
        if other is not mine:
            assert "is not a member" in error_of(lambda other=other: hvd.allreduce(1.0, process_set=other))
    for one in sets:
        assert hvd.remove_process_set(one)


def test_eager_calls_between_compiled_ones():
    """Calls are executed in the program's order, although JAX runs compiled functions at the same time."""
    compiled = jax.jit(lambda x: hvd.allreduce(hvd.allreduce(x @ x, hvd.Sum) / 300, hvd.Max))
    x = jnp.ones((300, 300)) * (RANK + 1)
    results = []
    for _ in range(3):
        results += [compiled(x), hvd.allreduce(x, hvd.Sum)]
    squares = float(sum((rank + 1) ** 2 for rank in RANKS))
    for pair in zip(results[::2], results[1::2], strict=True):
        np.testing.assert_allclose([float(r[0, 0]) for r in pair], [squares, sum(RANKS) + SIZE], rtol=1e-5)


def test_errors_are_on_every_rank_and_the_world_goes_on():
    """One rank has another shape, eagerly and under jit; under jit JAX raises its own error with our message."""
    if SIZE > 1:
        odd = jnp.ones(3 if RANK == 0 else 4)
        for way in (lambda f: f, jax.jit):
            words = error_of(lambda way=way: way(lambda x: hvd.allreduce(x, name="odd"))(odd))
            assert "(3,)" in words, words
            assert "(4,)" in words, words
        with pytest.raises(hvd.HorovodInternalError):
            hvd.allreduce(odd, name="odd")
    assert "op" in error_of(lambda: hvd.allreduce(1.0, op="sum"))
    assert "scalar" in error_of(lambda: hvd.allgather(1.0))
    assert "scalar" in error_of(lambda: jax.jit(hvd.allgather)(1.0))
    assert float(jax.jit(lambda x: hvd.allreduce(x, hvd.Sum))(1.0)) == SIZE


def test_vmap_is_refused():
    """Ranks cannot communicate for each example."""
    for call in (hvd.allreduce, hvd.grad(lambda x: (x**2).sum())):
        assert "vmap" in error_of(lambda call=call: jax.vmap(call)(value(RANK)))
    assert "vmap" in error_of(lambda: jax.jit(jax.vmap(hvd.allreduce))(value(RANK)))


def test_objects():
    key = jax.random.key(RANK)
    params = {"w": value(RANK), "half": jnp.ones(2, "bfloat16")}
    sent = {"step": RANK, "params": params, "key": key, "state": optax.adam(0.1).init(params)}
    found = hvd.broadcast_object(sent, ROOT)
    assert found["step"] == ROOT
    assert isinstance(found["params"]["w"], jax.Array)
    same(found["params"]["w"], value(ROOT), "objects")
    assert found["state"][0].mu["half"].dtype == "bfloat16"
    assert (jax.random.bits(found["key"]) == jax.random.bits(jax.random.key(ROOT))).item()
    gathered = hvd.allgather_object(jnp.float32(RANK))
    assert [float(one) for one in gathered] == list(RANKS)


def test_broadcast_parameters():
    """Parameters, optax's state, and keys in either form."""
    params = {"w": value(RANK), "scale": float(RANK)}
    tree = (params, optax.adam(0.1).init(params), jax.random.key(RANK), jax.random.PRNGKey(RANK), None)
    for root in RANKS:
        (own, state, key, old_key, nothing) = hvd.broadcast_parameters(tree, root)
        same(own["w"], value(root), root)
        assert (float(own["scale"]), type(state), nothing) == (root, type(tree[1]), None)
        assert (jax.random.bits(key) == jax.random.bits(jax.random.key(root))).item()
        assert old_key.tolist() == jax.random.PRNGKey(root).tolist()
    assert "outside of jit" in error_of(lambda: jax.jit(hvd.broadcast_parameters)(params))


def test_join_of_uneven_data():
    """A rank that has joined counts as zeros, also in compiled functions."""
    compiled = jax.jit(lambda x: hvd.allreduce(x, hvd.Sum, "uneven"))
    for step in range(1 if RANK == 0 else 3):
        assert float(compiled(1.0)) == (SIZE if step == 0 else SIZE - 1)
    hvd.join()
    assert float(compiled(1.0)) == SIZE


def test_another_world():
    """A function compiled in one world runs in the next world."""
    compiled = jax.jit(lambda x: hvd.allreduce(x, hvd.Sum))
    step = jax.jit(hvd.grad(lambda x: x * RANK))
    for _ in range(2):
        assert (float(compiled(1.0)), float(step(1.0))) == (SIZE, np.mean(RANKS).astype("float32"))
        hvd.shutdown()
        assert "init()" in error_of(lambda: hvd.allreduce(1.0))
        hvd.init()
