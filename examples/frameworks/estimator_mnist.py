"""A convolutional network on digits in an Estimator that updates its weights on the host. In two terminals:

    TF_CONFIG='{"cluster":{"worker":["localhost:3737","localhost:3738"]},"task":{"type":"worker","index":0}}' \\
        python examples/frameworks/estimator_mnist.py
    … and "index":1 in the other. Or: mpirun -np 2 -H localhost:2 python examples/frameworks/estimator_mnist.py
"""

import argparse
from pathlib import Path

import numpy as np
import tensorflow as tf
from digits import load_digits

import ringtrain.tensorflow.distribute as distribute

v1 = tf.compat.v1


def weights(name: str, *shape: int) -> tf.Variable:
    make = v1.glorot_uniform_initializer() if len(shape) > 1 else v1.zeros_initializer()
    return v1.get_variable(name, shape, initializer=make)


def network(images: tf.Tensor) -> tf.Tensor:
    x = images
    for layer, (before, after) in enumerate(((1, 16), (16, 32))):
        x = tf.nn.conv2d(x, weights(f"conv{layer}/kernel", 3, 3, before, after), strides=1, padding="SAME")
        x = tf.nn.max_pool2d(tf.nn.relu(x + weights(f"conv{layer}/bias", after)), 2, 2, "VALID")
    x = tf.reshape(x, [-1, int(np.prod(x.shape[1:]))])
    return x @ weights("dense/kernel", x.shape[1], 10) + weights("dense/bias", 10)


def model_fn(features: tf.Tensor, labels: tf.Tensor, mode: str, params: dict) -> distribute.EstimatorSpec:
    logits = network(features)
    predicted = tf.argmax(logits, axis=-1)
    if mode == distribute.ModeKeys.PREDICT:
        return distribute.EstimatorSpec(mode, predictions={"digit": predicted})
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
    if mode == distribute.ModeKeys.EVAL:
        metrics = {"accuracy": v1.metrics.accuracy(labels, predicted)}
        return distribute.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
    variables = v1.trainable_variables()

    def host_model_fn(*gradients: tf.Tensor) -> tf.Operation:
        # On the host, with the average of all ranks' gradients.
        optimizer = v1.train.AdamOptimizer(params["learning_rate"])
        return optimizer.apply_gradients(zip(gradients, variables, strict=True))

    return distribute.EstimatorSpec(mode, loss=loss, host_call=(host_model_fn, tf.gradients(loss, variables)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=64, help="images per step, of all ranks together")
    parser.add_argument("--model-dir", default="model")
    parser.add_argument("--data-dir", type=Path, help="directory with MNIST's IDX files")
    options = parser.parse_args()
    v1.logging.set_verbosity(v1.logging.INFO)
    data = load_digits(options.data_dir)
    strategy = distribute.MultiWorkerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())

    def train_fn(input_context: distribute.InputContext) -> tf.data.Dataset:
        batch = input_context.get_per_replica_batch_size(options.batch_size)
        images = tf.data.Dataset.from_tensor_slices((data.train_images[..., None], data.train_labels))
        images = images.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
        return images.shuffle(2000, seed=input_context.input_pipeline_id).repeat().batch(batch)

    def test_fn() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices((data.test_images[..., None], data.test_labels)).batch(100)

    config = distribute.RunConfig(train_distribute=strategy, log_step_count_steps=20)
    estimator = distribute.Estimator(model_fn, options.model_dir, config, {"learning_rate": 2e-3})
    found = distribute.train_and_evaluate(
        estimator, distribute.TrainSpec(train_fn, options.steps), distribute.EvalSpec(test_fn, steps=None)
    )
    if strategy.input_context.input_pipeline_id == 0:
        print(f"test accuracy: {found['accuracy']:.4f}", flush=True)


if __name__ == "__main__":
    main()
