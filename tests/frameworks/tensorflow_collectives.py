"""Checks of ringtrain.tensorflow's collectives against direct numpy computations, run on every rank of a world.

Every computation runs eagerly and inside `tf.function`.
"""

import numpy as np
import pytest
import tensorflow as tf

import ringtrain.tensorflow as hvd

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
RANKS = range(SIZE)
FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTEGERS = ["uint8", "int8", "int32", "int64"]
DIMS = [1, 2, 3]
FOLDS = {"Sum": np.sum, "Min": np.min, "Max": np.max, "Product": np.prod, "Average": np.mean}
MODES = {"eager": lambda function: function, "graph": tf.function}


def numbers(rank: int, dim: int, rows: int | None = None) -> np.ndarray:
    """Small integers that differ by rank: sums and products of four of them are exact in every dtype."""
    shape = (rows if rows is not None else SIZE + 1,) + (3,) * (dim - 1)
    return ((np.arange(int(np.prod(shape))) + rank) % 3 + 1).reshape(shape).astype(float)


def value(rank: int, dim: int, dtype: str = "float32", rows: int | None = None) -> tf.Tensor:
    return tf.cast(tf.constant(numbers(rank, dim, rows)), dtype)


def same(tensor: tf.Tensor, expected: np.ndarray, case: object, dtype: str = "float64") -> None:
    rounding = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-6}.get(dtype, 1e-12)
    assert tuple(tensor.shape) == expected.shape, (case, tensor.shape, expected.shape)
    ours = np.asarray(tf.cast(tensor, tf.float64))
    np.testing.assert_allclose(ours, expected, rtol=rounding, err_msg=str(case))


def reduced(dim: int, dtype: str, op: str, rows: int | None = None) -> np.ndarray:
    folded = FOLDS[op](np.stack([numbers(rank, dim, rows) for rank in RANKS]), axis=0)
    return np.trunc(folded) if dtype in INTEGERS else folded


def check_allreduce_forward():
    for dtype in (*FLOATS, *INTEGERS):
        for dim in DIMS:
            for op in FOLDS:
                result = hvd.allreduce(value(RANK, dim, dtype), op=getattr(hvd, op))
                assert result.dtype.name == dtype
                same(result, reduced(dim, dtype, op), (dtype, dim, op), dtype)


def check_allreduce_in_a_graph():
    @tf.function
    def every_op(tensor):
        return [hvd.allreduce(tensor, op=getattr(hvd, op), prescale_factor=2.0) for op in ("Sum", "Average")]

    for dtype in FLOATS:
        for dim in DIMS:
            for op, result in zip(("Sum", "Average"), every_op(value(RANK, dim, dtype)), strict=True):
                same(result, 2 * reduced(dim, dtype, op), (dtype, dim, op), dtype)


def check_allreduce_gradient():
    for mode, wrap in MODES.items():
        for op in FOLDS:

            @wrap
            def gradient(x, op=op):
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    y = hvd.allreduce(x, op=getattr(hvd, op), prescale_factor=2.0) * (RANK + 1.0)
                return tape.gradient(y, x)

            for dim in DIMS:
                same(gradient(value(RANK, dim)), allreduce_gradient(dim, op), (mode, op, dim), "float32")


def allreduce_gradient(dim: int, op: str) -> np.ndarray:
    inputs, total = np.stack([numbers(rank, dim) for rank in RANKS]), sum(rank + 1.0 for rank in RANKS)
    if op in ("Sum", "Average"):
        return np.full(inputs[0].shape, 2 * total / (SIZE if op == "Average" else 1))
    if op == "Product":
        return total * 2**SIZE * np.prod(np.delete(inputs, RANK, axis=0), axis=0)
    held = inputs == FOLDS[op](inputs, axis=0)
    return 2 * total * held[RANK] / held.sum(axis=0)


def check_allreduce_of_variables_scalars_and_averages():
    same(hvd.allreduce(tf.Variable([1.0, 2.0]), op=hvd.Sum), SIZE * np.array([1.0, 2.0]), "variable")
    same(hvd.allreduce(tf.constant(float(RANK)), average=False), np.array(float(sum(RANKS))), "scalar")
    assert hvd.allreduce(tf.constant([True, RANK == 0]), op=hvd.Min).numpy().tolist() == [True, SIZE == 1]


def check_allreduce_compressed():
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        for dtype in ("float32", "int64"):
            result = hvd.allreduce(value(RANK, 2, dtype), op=hvd.Sum, compression=compression)
            assert result.dtype.name == dtype
            same(result, reduced(2, dtype, "Sum"), dtype)


def check_adasum():
    if SIZE & (SIZE - 1):
        with pytest.raises(RuntimeError, match=f"the process set has {SIZE}"):
            hvd.allreduce(value(RANK, 1), op=hvd.Adasum)
        return
    np.testing.assert_allclose(hvd.allreduce(tf.constant([3.0, 4.0]), op=hvd.Adasum), [3.0, 4.0], rtol=1e-6)
    assert hvd.allreduce(tf.one_hot(RANK, SIZE), op=hvd.Adasum).numpy().tolist() == [1.0] * SIZE


def check_allreduce_of_indexed_slices():
    for wrap in MODES.values():

        @wrap
        def reduce(values, indices):
            slices = tf.IndexedSlices(values, indices, dense_shape=tf.constant([SIZE + 1, 2]))
            return [tf.convert_to_tensor(hvd.allreduce(slices, op=op)) for op in (hvd.Sum, hvd.Average)]

        summed, averaged = reduce(tf.ones((2, 2)), tf.constant([0, RANK + 1]))
        expected = np.array([SIZE, *[1.0] * SIZE])[:, None] * np.ones(2)
        same(summed, expected, "sum")
        same(averaged, expected / SIZE, "average", "float32")
    with pytest.raises(ValueError, match="op is Max"):
        hvd.allreduce(tf.IndexedSlices(tf.ones((1, 2)), tf.constant([0])), op=hvd.Max)


def check_grouped_allreduce():
    for wrap in MODES.values():

        @wrap
        def reduce():
            xs = [value(RANK, dim) for dim in DIMS]
            slices = tf.IndexedSlices(tf.ones((1, 2)), tf.constant([RANK]), tf.constant([SIZE, 2]))
            with tf.GradientTape() as tape:
                tape.watch(xs)
                ys = hvd.grouped_allreduce([*xs, slices], op=hvd.Sum)
            return ys[:3], tape.gradient(ys[:3], xs), tf.convert_to_tensor(ys[3])

        ys, grads, dense = reduce()
        for dim, y, grad in zip(DIMS, ys, grads, strict=True):
            same(y, reduced(dim, "float32", "Sum"), dim)
            same(grad, np.full(y.shape, float(SIZE)), dim)
        same(dense, np.ones((SIZE, 2)), "slices")


def check_allgather():
    for dtype in (*FLOATS, *INTEGERS):
        for dim in DIMS:
            result = hvd.allgather(value(RANK, dim, dtype, RANK + 1))
            same(result, np.concatenate([numbers(rank, dim, rank + 1) for rank in RANKS]), (dtype, dim))


def check_allgather_gradient():
    for wrap in MODES.values():

        @wrap
        def gradients(*xs):
            with tf.GradientTape() as tape:
                tape.watch(xs)
                ys = [hvd.allgather(xs[0]), *hvd.grouped_allgather(xs[1:])]
                loss = [
                    tf.reduce_sum(y) * (RANK + 1.0) + tf.reduce_sum(y * tf.cast(tf.range(tf.shape(y)[0]), y.dtype))
                    for y in ys
                ]
            return tape.gradient(loss, xs)

        for grad in gradients(*(value(RANK, 1, "float32", RANK + 1) for _ in range(3))):
            start = sum(rank + 1 for rank in range(RANK))
            expected = sum(rank + 1.0 for rank in RANKS) + SIZE * np.arange(start, start + RANK + 1)
            same(grad, expected, "gradient")


def check_broadcast():
    for root in RANKS:
        for dtype in (*FLOATS, *INTEGERS):
            for dim in DIMS:
                same(hvd.broadcast(value(RANK, dim, dtype), root), numbers(root, dim), (root, dtype, dim))
        for wrap in MODES.values():

            @wrap
            def gradient(x, root=root):
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    y = hvd.broadcast(x, root) * (RANK + 1.0)
                return tape.gradient(y, x)

            flows = sum(rank + 1.0 for rank in RANKS) if root == RANK else 0.0
            same(gradient(value(RANK, 2)), np.full((SIZE + 1, 3), flows), root)


def check_alltoall():
    for dtype in (*FLOATS, *INTEGERS):
        result = hvd.alltoall(value(RANK, 2, dtype, 2 * SIZE))
        sent = [numbers(rank, 2, 2 * SIZE)[2 * RANK : 2 * RANK + 2] for rank in RANKS]
        same(result, np.concatenate(sent), dtype)
    for wrap in MODES.values():

        @wrap
        def exchange(x, splits):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y, received = hvd.alltoall(x, splits)
                loss = y * (RANK + 1.0)
            return y, received, tape.gradient(loss, x)

        splits = [(RANK + to) % 3 for to in RANKS]
        y, received, grad = exchange(tf.fill((sum(splits), 2), float(RANK)), tf.constant(splits))
        counts = [(rank + RANK) % 3 for rank in RANKS]
        assert received.numpy().tolist() == counts
        same(y, np.repeat(np.arange(SIZE), counts)[:, None] * np.ones(2), "received")
        same(grad, np.repeat([to + 1.0 for to in RANKS], splits)[:, None] * np.ones(2), "gradient")


def check_reducescatter():
    lengths = [(SIZE + 1) // SIZE + (index < (SIZE + 1) % SIZE) for index in RANKS]
    own = slice(sum(lengths[:RANK]), sum(lengths[: RANK + 1]))
    for dtype in (*FLOATS, *INTEGERS):
        for dim in DIMS:
            for op in ("Sum", "Average"):
                result = hvd.reducescatter(value(RANK, dim, dtype), op=getattr(hvd, op))
                same(result, reduced(dim, dtype, op)[own], (dtype, dim, op), dtype)
    for wrap in MODES.values():
        for op, factor in (("Sum", SIZE), ("Average", 1)):

            @wrap
            def gradient(x, op=op):
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    y = hvd.grouped_reducescatter([x], op=getattr(hvd, op))[0] * (RANK + 1.0)
                return tape.gradient(y, x)

            expected = factor * np.repeat([rank + 1.0 for rank in RANKS], lengths)[:, None] * np.ones(3)
            same(gradient(value(RANK, 2)), expected, op)


def check_broadcast_variables():
    for wrap in MODES.values():
        variables = [tf.Variable(value(RANK, dim)) for dim in DIMS] + [tf.Variable(RANK)]

        @wrap
        def broadcast(variables=variables):
            hvd.broadcast_variables(variables, SIZE - 1, inplace=True)

        broadcast()
        for dim, variable in zip(DIMS, variables, strict=False):
            same(variable, numbers(SIZE - 1, dim), dim)
        assert int(variables[-1]) == SIZE - 1
    hvd.broadcast_variables([], 0)
    with pytest.raises(ValueError, match="broadcast_variables"):
        hvd.broadcast_global_variables(0)


def check_objects():
    state = {"step": RANK, "weights": np.full(2, float(RANK)), "names": ["a", ("b", None)]}
    received = hvd.broadcast_object(state, SIZE - 1)
    assert (received["step"], received["weights"].tolist()) == (SIZE - 1, [SIZE - 1.0] * 2)
    assert hvd.broadcast_object_fn(0)(RANK) == 0
    assert hvd.allgather_object({"rank": RANK}) == [{"rank": rank} for rank in RANKS]
    with pytest.raises(ValueError, match="allow_pickle"):
        hvd.allgather_object(object())


def check_world_ops():
    @tf.function
    def facts():
        return (
            hvd.rank_op(),
            hvd.size_op(),
            hvd.local_rank_op(),
            hvd.local_size_op(),
            hvd.process_set_included_op(),
        )

    assert [int(fact) for fact in facts()] == [RANK, SIZE, hvd.local_rank(), hvd.local_size(), 1]
    assert int(hvd.process_set_included_op(99)) == -2


def check_process_sets():
    if SIZE < 2:
        return
    even = hvd.add_process_set([rank for rank in RANKS if rank % 2 == 0])
    odd = hvd.add_process_set([rank for rank in RANKS if rank % 2 == 1])
    mine = even if RANK % 2 == 0 else odd
    own = [rank for rank in RANKS if rank % 2 == RANK % 2]
    same(hvd.allreduce(tf.constant(1.0), op=hvd.Sum, process_set=mine), np.array(float(len(own))), own)
    same(hvd.allgather(tf.constant([RANK]), process_set=mine), np.array(own, float), own)
    same(hvd.broadcast(tf.constant(RANK), own[-1], process_set=mine), np.array(float(own[-1])), own)
    assert int(hvd.size_op(mine.process_set_id)) == len(own)
    assert [hvd.remove_process_set(s) for s in (even, odd)] == [True, True]


def check_join():
    steps = 1 if RANK == 0 else 3
    for step in range(steps):
        same(hvd.allreduce(tf.ones(2), op=hvd.Sum), np.full(2, float(SIZE if step == 0 else SIZE - 1)), step)
    last = int(hvd.join())
    assert hvd.allgather_object(last) == [last] * SIZE


def check_errors():
    """An error names both ranks and both values, eagerly and out of a graph."""
    if SIZE > 1:
        for wrap, error in ((MODES["eager"], RuntimeError), (MODES["graph"], tf.errors.OpError)):

            @wrap
            def differ():
                return hvd.allreduce(tf.ones(2 + min(RANK, 1)), name="w")

            with pytest.raises(error, match=r"shape is \(2,\) on rank 0 and \(3,\) on rank 1"):
                differ()
        with pytest.raises(RuntimeError, match="dtype is float32 on rank 0 and int64 on rank 1"):
            hvd.allgather(tf.ones(2, tf.float32 if RANK == 0 else tf.int64))
        with pytest.raises(RuntimeError, match="root rank is 0 on rank 0 and 1 on rank 1"):
            hvd.broadcast(tf.ones(2), min(RANK, 1))
        with pytest.raises(RuntimeError, match="op is Sum on rank 0 and Max on rank 1"):
            hvd.allreduce(tf.ones(2), op=hvd.Sum if RANK == 0 else hvd.Max)
        with pytest.raises(RuntimeError, match=r"prescale factor is 1.0 on rank 0 and 2.0 on rank 1"):
            hvd.allreduce(tf.ones(2), prescale_factor=1.0 + min(RANK, 1))
    for call in (hvd.allgather, hvd.alltoall, hvd.reducescatter):
        with pytest.raises(RuntimeError, match=r"rank 0.* is a scalar"):
            call(tf.constant(1.0))
    with pytest.raises(RuntimeError, match=r"rank 0.*add up to"):
        hvd.alltoall(tf.ones(SIZE), tf.constant([3] * SIZE if RANK == 0 else [1] * SIZE))
