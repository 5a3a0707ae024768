"""Checks of ringtrain.tensorflow.distribute, run on every rank of a world."""

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from test_tensorflow_training import RANK, SIZE, batch, pooled

import ringtrain.tensorflow as hvd
from ringtrain.tensorflow import distribute
from ringtrain_job.agent.world_file import unusable_tf_config

RUN_IN = {"framework": "keras", "ranks": [1, 3]}

v1 = tf.compat.v1
RATE = 0.1


def linear(features, labels, mode, params):
    """A linear model; its training as `params["train"]` makes it of loss and variables."""
    weights = v1.get_variable("w", initializer=tf.ones([6, 2]))
    predictions = features @ weights
    if mode == distribute.ModeKeys.PREDICT:
        return distribute.EstimatorSpec(mode, predictions={"y": predictions})
    loss = tf.reduce_mean(tf.square(predictions - labels))
    if mode == distribute.ModeKeys.EVAL:
        metrics = {"error": v1.metrics.mean_absolute_error(labels, predictions)}
        return distribute.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
    assert "CPU" in weights.device
    return distribute.EstimatorSpec(mode, loss=loss, **params["train"](loss, [weights]))


def on_host(loss, variables):
    def update(*gradients):
        assert SIZE == 1 or all("CPU" in gradient.device for gradient in gradients)
        return v1.train.GradientDescentOptimizer(RATE).apply_gradients(zip(gradients, variables, strict=True))

    return {"host_call": (update, tf.gradients(loss, variables))}


def by_train_op(loss, variables):
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(RATE))
    return {"train_op": optimizer.minimize(loss, global_step=v1.train.get_or_create_global_step())}


def by_strategy(loss, variables):
    pairs = zip(tf.gradients(loss, variables), variables, strict=True)
    optimizer = v1.train.GradientDescentOptimizer(RATE)
    return {"train_op": distribute.HorovodStrategy().apply_gradients(optimizer, pairs)}


def alone(loss, variables):
    return {"train_op": v1.train.GradientDescentOptimizer(RATE).minimize(loss)}


def batches(numbers: range) -> Callable:
    parts = [batch(RANK, number) for number in numbers]
    return lambda: tf.data.Dataset.from_tensor_slices(tuple(np.stack(part) for part in zip(*parts, strict=True)))


def reference(steps: int) -> np.ndarray:
    weights = np.ones((6, 2), np.float32)
    for number in range(steps):
        x, y = pooled(number)
        weights -= RATE * 2 * x.T @ (x @ weights - y) / y.size
    return weights


def estimator(directory: str, train: Callable = on_host) -> distribute.Estimator:
    return distribute.Estimator(linear, directory, params={"train": train})


def test_an_estimator_trains_like_one_process_and_resumes():
    for train in (on_host, by_train_op, by_strategy):
        with tempfile.TemporaryDirectory() as directory:
            estimator(directory, train).train(batches(range(4)), max_steps=3)
            again = estimator(directory, train).train(batches(range(3, 8)), max_steps=6)
            again.train(batches(range(1)), max_steps=6)  # there is nothing left to do
            assert (again.latest_checkpoint() is None) == (RANK != 0)
            if RANK == 0:
                saved = tf.train.load_variable(again.latest_checkpoint(), "w")
                np.testing.assert_allclose(saved, reference(6), rtol=1e-4, atol=1e-5)
            x, y = pooled(9)
            found = again.evaluate(functools.partial(tf.data.Dataset.from_tensors, (x, y)))
            assert found["global_step"] == 6
            assert found["error"] == pytest.approx(np.abs(x @ reference(6) - y).mean(), rel=1e-3)
            assert found["loss"] == pytest.approx(np.square(x @ reference(6) - y).mean(), rel=1e-3)
            if RANK == 0:
                rows = list(again.predict(functools.partial(tf.data.Dataset.from_tensors, x)))
                np.testing.assert_allclose([row["y"] for row in rows], x @ reference(6), rtol=1e-3, atol=1e-4)
        hvd.barrier()


def test_train_and_evaluate_returns_the_last_metrics_everywhere():
    with tempfile.TemporaryDirectory() as directory:
        config = distribute.RunConfig(save_checkpoints_steps=2)
        made = distribute.Estimator(linear, directory, config, params={"train": on_host})
        evaluated = []

        def test_fn() -> tf.data.Dataset:
            evaluated.append(RANK)
            return tf.data.Dataset.from_tensors(pooled(9))

        spec = distribute.EvalSpec(test_fn, steps=None, throttle_secs=0)
        found = distribute.train_and_evaluate(made, distribute.TrainSpec(batches(range(9)), 5), spec)
        assert found["global_step"] == 5
        assert evaluated == ([0] * 3 if RANK == 0 else [])  # after 2, 4 and 5 steps
        assert distribute.train_and_evaluate(made, distribute.TrainSpec(batches(range(9)), 5), spec) == found


def resolver(size: int, rank: int):
    cluster = tf.train.ClusterSpec({"worker": [f"host-{number}:1" for number in range(size)]})
    made = tf.distribute.cluster_resolver.SimpleClusterResolver
    return made(cluster, task_type="worker", task_id=rank)


def test_a_cluster_that_is_too_long_for_a_variable_is_refused():
    """TensorFlow reads a large world's TF_CONFIG as an error that names the place of the cluster, not as a missing
    cluster."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TF_CONFIG", unusable_tf_config(20_000, {"type": "worker", "index": 3}))
        with pytest.raises(TypeError, match="20000 are too many for TF_CONFIG: see RINGTRAIN_WORLD_FILE"):
            tf.distribute.MultiWorkerMirroredStrategy()


def test_strategies_have_one_behaviour():
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": [f"host-{rank}:1" for rank in range(SIZE)]}),
        task_type="worker",
        task_id=RANK,
    )
    none = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    made = (
        distribute.MultiWorkerStrategy(resolver),
        distribute.MultiWorkerStrategy(none),
        distribute.HorovodStrategy(),
    )
    for strategy in made:
        assert strategy.num_replicas_in_sync == SIZE
        context = strategy.distribute_datasets_from_function(lambda context: context)
        assert (context.num_input_pipelines, context.input_pipeline_id) == (SIZE, RANK)
        assert context.get_per_replica_batch_size(12) == 12 // SIZE
        assert "CPU" in strategy.run(lambda: tf.Variable(1.0)).device
        total = strategy.reduce("SUM", tf.constant([1.0, RANK]), axis=0)
        assert total.numpy() == sum(1 + rank for rank in range(SIZE))
        assert strategy.reduce(tf.distribute.ReduceOp.MEAN, tf.constant(float(RANK))).numpy() == (SIZE - 1) / 2
    placed = []
    with distribute.HorovodStrategy(variables_on_host=False).scope(), tf.Graph().as_default():
        placed.append(v1.get_variable("w", initializer=1.0).device)
    assert placed == [""]


def test_errors_of_estimators():
    other = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": [f"host-{rank}:1" for rank in range(SIZE + 1)]}),
        task_type="worker",
        task_id=0,
    )
    with pytest.raises(ValueError, match=f"rank 0 of {SIZE + 1}, but the process is rank {RANK} of {SIZE} already"):
        distribute.MultiWorkerStrategy(other)
    nobody = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec({"worker": ["a:1"]}))
    with pytest.raises(ValueError, match="set task_type and task_id to the task of this process"):
        distribute.MultiWorkerStrategy(nobody)
    with pytest.raises(ValueError, match=r"mode='train'\) has no loss and no train_op or host_call"):
        distribute.EstimatorSpec("train")
    with pytest.raises(ValueError, match=r"host_call has the gradients \[None\]; expected one or more gradients"):
        distribute.EstimatorSpec("train", loss=1.0, host_call=(print, [None]))
    with pytest.raises(ValueError, match="reduce_op is 'MAX'; expected"):
        distribute.HorovodStrategy().reduce("MAX", 1.0)
    with tempfile.TemporaryDirectory() as directory:
        with pytest.raises(ValueError, match="has no checkpoint; train first"):
            estimator(directory).evaluate(batches(range(1)))
        if SIZE > 1:
            with pytest.raises(ValueError, match="train_op exchanges no data with 2 other ranks"):
                estimator(directory, alone).train(batches(range(1)), max_steps=1)
        assert list(Path(directory).iterdir()) == []
