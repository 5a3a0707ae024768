"""Checks of ringtrain.tensorflow other than collectives: process sets, join, objects, facts, errors."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_values import MODES, RANK, RANKS, SIZE, same

import ringtrain.tensorflow as hvd

RUN_IN = {"framework": "keras", "ranks": [1, 3]}


def test_objects():
    state = {"step": RANK, "weights": np.full(2, float(RANK)), "names": ["a", ("b", None)]}
    received = hvd.broadcast_object(state, SIZE - 1)
    assert (received["step"], received["weights"].tolist()) == (SIZE - 1, [SIZE - 1.0] * 2)
    assert hvd.broadcast_object_fn(0)(RANK) == 0
    assert hvd.allgather_object({"rank": RANK}) == [{"rank": rank} for rank in RANKS]
    with pytest.raises(ValueError, match="allow_pickle"):
        hvd.allgather_object(object())


def test_world_ops():
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


def test_process_sets():
    if SIZE < 2:
        return
    even = hvd.add_process_set([rank for rank in RANKS if rank % 2 == 0])
    odd = hvd.add_process_set([rank for rank in RANKS if rank % 2 == 1])
    mine, other = (even, odd) if RANK % 2 == 0 else (odd, even)
    own = [rank for rank in RANKS if rank % 2 == RANK % 2]
    same(hvd.allreduce(tf.constant(1.0), op=hvd.Sum, process_set=mine), np.array(float(len(own))), own)
    same(hvd.allgather(tf.constant([RANK]), process_set=mine), np.array(own, float), own)
    same(hvd.broadcast(tf.constant(RANK), own[-1], process_set=mine), np.array(float(own[-1])), own)
    same(hvd.alltoall(tf.fill([len(own)], RANK), process_set=mine), np.array(own, float), own)
    same(hvd.reducescatter(tf.ones(len(own)), op=hvd.Sum, process_set=mine), np.array([float(len(own))]), own)
    with pytest.raises(RuntimeError, match="is not a member"):
        hvd.allreduce(tf.constant(1.0), process_set=other)
    weight = tf.Variable(1.0)
    with tf.GradientTape() as tape:
        loss = weight * float(RANK)
    grad = hvd.DistributedGradientTape(tape, process_set=even).gradient(loss, weight)
    alone = float(RANK)  # a rank that is not in a set trains alone
    same(grad, np.array(np.mean([r for r in RANKS if r % 2 == 0]) if RANK % 2 == 0 else alone), even, "float32")
    assert int(hvd.size_op(mine.process_set_id)) == len(own)
    assert [hvd.remove_process_set(s) for s in (even, odd)] == [True, True]


def test_objects_of_every_plain_kind():
    """Values of numpy, Python and TensorFlow in containers arrive; a value that cannot be sent fails all ranks at
    once."""
    value = {
        "array": np.arange(6).reshape(2, 3),
        "both": [np.float32(0.5), tf.constant([1, 2], tf.bfloat16), {1, 2}, tf.constant("text"), tf.int8],
        (1, 2): b"raw",
    }
    for got in (hvd.broadcast_object(value if RANK == 0 else None), *hvd.allgather_object(value)):
        assert repr(got) == repr(value)
    assert float(hvd.broadcast_object(tf.Variable(float(RANK)), SIZE - 1)) == SIZE - 1
    for call in (hvd.broadcast_object, hvd.allgather_object):
        with pytest.raises(tf.errors.InvalidArgumentError, match="rank 0"):
            call(object() if RANK == 0 else None)


def test_join():
    """A rank that has joined counts as zeros; what needs data from every rank fails on all others."""
    for first in {0, SIZE - 1}:
        steps = 1 if first == RANK else 3
        for step in range(steps):
            counted = SIZE if step == 0 else SIZE - 1
            same(hvd.allreduce(tf.ones(2), op=hvd.Sum), np.full(2, float(counted)), step)
            same(hvd.allreduce(tf.ones(2)), np.full(2, counted / SIZE), step, "float32")
        if first != RANK:
            for call in (
                lambda: hvd.allgather(tf.ones(2)),
                lambda root=first: hvd.broadcast(tf.ones(2), root),
                lambda: hvd.reducescatter(tf.ones(SIZE)),
                lambda: hvd.allreduce(tf.ones(2), op=hvd.Max),
            ):
                with pytest.raises(RuntimeError, match=rf"rank {first} has called join\(\)"):
                    call()
        last = int(hvd.join())
        assert hvd.allgather_object(last) == [last] * SIZE


def test_errors():
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
        for factor in ("prescale", "postscale"):
            with pytest.raises(RuntimeError, match=rf"{factor} factor is 1.0 on rank 0 and 2.0 on rank 1"):
                hvd.allreduce(tf.ones(2), **{f"{factor}_factor": 1.0 + min(RANK, 1)})
        with pytest.raises(RuntimeError, match=r"dtype is float32 on rank 0 and"):
            hvd.grouped_allreduce([tf.ones(2)] * (1 + min(RANK, 1)), name="g")
        with pytest.raises(RuntimeError, match=r"after the first dimension is \(2, 3\) on rank 0 and \(2, 4\)"):
            hvd.allgather(tf.ones((2, 3 + min(RANK, 1))))
        with pytest.raises(RuntimeError, match="divided equally among"):
            hvd.alltoall(tf.ones(SIZE + 1))
    with pytest.raises(RuntimeError, match=rf"root rank is {SIZE}; expected one of"):
        hvd.broadcast(tf.ones(2), SIZE)
    for wrong in ({"op": "median"}, {"op": hvd.Sum, "average": True}):
        with pytest.raises(ValueError, match=r"expected|pass only op"):
            hvd.allreduce(tf.ones(2), **wrong)
    for call in (hvd.allgather, hvd.alltoall, hvd.reducescatter):
        with pytest.raises(RuntimeError, match=r"rank 0.* is a scalar"):
            call(tf.constant(1.0))
    wrong_splits = {
        "entries": [1] * (SIZE + 1),
        "add up to": [3] * SIZE,
        "negative": [-1] * SIZE,
        "whole numbers": [1.25] * SIZE,
    }
    for words, splits in wrong_splits.items():
        with pytest.raises(RuntimeError, match=f"rank 0.*{words}"):
            hvd.alltoall(tf.ones(SIZE), tf.constant(splits if RANK == 0 else [1] * SIZE))
