"""Horovod's MNIST example for the data service in the same structure: one train function for each side of dispatchers.

Digits are random here, and the network is small.
"""

import argparse

import numpy as np
import tensorflow as tf

import ringtrain.tensorflow.keras as hvd
from ringtrain.runner.common.util import env
from ringtrain_data_service.tensorflow.compute_service import TfDataServiceConfig, tf_data_service


def images():
    digits = np.random.default_rng(1)
    return tf.data.Dataset.from_tensor_slices(
        (digits.random((256, 28, 28, 1), np.float32), digits.integers(0, 10, 256))
    )


def train_compute_side(config, reuse_dataset, round_robin):
    hvd.init()
    dataset = images().repeat().shuffle(100).batch(32)
    dataset = dataset.send_to_data_service(
        config, hvd.rank(), hvd.size(), reuse_dataset=reuse_dataset, round_robin=round_robin
    )
    fit(dataset.prefetch(tf.data.experimental.AUTOTUNE))


def train_training_side(config, reuse_dataset, round_robin):
    hvd.init()
    with tf_data_service(config, hvd.rank()) as dispatcher_address:
        dataset = images().repeat().shuffle(100).batch(32)
        dataset = dataset.apply(
            tf.data.experimental.service.distribute(
                service=dispatcher_address,
                processing_mode="distributed_epoch",
                job_name="job" if reuse_dataset else None,
                consumer_index=hvd.rank() if round_robin else None,
                num_consumers=hvd.size() if round_robin else None,
            )
        )
        fit(dataset.prefetch(tf.data.experimental.AUTOTUNE))


def fit(dataset):
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Input((28, 28, 1)), layers.Flatten(), layers.Dense(10, activation="softmax")])
    optimizer = hvd.DistributedOptimizer(
        tf.optimizers.Adam(0.001 * hvd.size()), backward_passes_per_step=1, average_aggregated_gradients=True
    )
    model.compile(loss=tf.losses.SparseCategoricalCrossentropy(), optimizer=optimizer, metrics=["accuracy"])
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.001 * hvd.size(), warmup_epochs=1, verbose=1),
    ]
    model.fit(dataset, steps_per_epoch=8 // hvd.size(), callbacks=callbacks, epochs=2, verbose=2)
    print(f"rank {hvd.rank()} of {hvd.size()} trained {model.optimizer.iterations.numpy()} steps")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("configfile")
    parser.add_argument("--reuse-dataset", action="store_true")
    parser.add_argument("--round-robin", action="store_true")
    arguments = parser.parse_args()
    compute_config = TfDataServiceConfig.read(arguments.configfile, wait_for_file_creation=True)
    rank, size = env.get_env_rank_and_size()
    assert compute_config.dispatchers in (1, size)
    train_fn = {"training": train_training_side, "compute": train_compute_side}[compute_config.dispatcher_side]
    train_fn(compute_config, reuse_dataset=arguments.reuse_dataset, round_robin=arguments.round_robin)
    if rank == 0:
        compute_config.compute_client(verbose=2).shutdown()
