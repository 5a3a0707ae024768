"""A dense network on digits with TensorFlow's gradient tape.

ringtrain run -np 2 -H localhost:2 python examples/frameworks/tensorflow_mnist.py
dtj local manifests/samples/tensorflow-mnist.yaml
"""

import argparse
import os
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from digits import Digits, load_digits

import ringtrain as rt
import ringtrain.tensorflow as hvd
from ringtrain.checkpoint import attempt_directory, readable_directories
from ringtrain.data import shard


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--data-dir", type=Path, help="directory with MNIST's IDX files")
    options = parser.parse_args()
    hvd.init()
    keras.utils.set_random_seed(0)
    data = load_digits(options.data_dir)
    part = shard(data.train_images, options.batch_size, seed=0)
    model = keras.Sequential(
        [
            keras.Input(data.train_images.shape[1:]),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    optimizer = keras.optimizers.Adam(2e-3)
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        grads = hvd.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        return loss

    everything = [*model.variables, *optimizer.variables]
    checkpoint = Checkpoint("tensorflow-mnist.npz", everything)
    first = checkpoint.resume()
    hvd.broadcast_variables(everything, root_rank=0)
    for epoch in range(first, options.epochs):
        loss = 0.0
        for number, batch in enumerate(batches := list(part.epoch(epoch))):
            loss = float(step(data.train_images[batch.indices], data.train_labels[batch.indices]))
            done = epoch * len(batches) + number + 1
            rt.report(step=done, epoch=epoch, samples=batch.count, loss=loss, unit="images")
        mean, score = float(hvd.allreduce(loss)), accuracy(model, data)
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}/{options.epochs}  loss {mean:.4f}  accuracy {score:.4f}", flush=True)
            checkpoint.save(epoch + 1)
    score = accuracy(model, data)
    if hvd.rank() == 0:
        print(f"test accuracy: {score:.4f}", flush=True)
    hvd.shutdown()


def accuracy(model: keras.Model, data: Digits) -> float:
    """Share of test images that are recognised; every rank looks at its part of them."""
    mine = slice(hvd.rank(), None, hvd.size())
    right = np.argmax(model(data.test_images[mine]), 1) == data.test_labels[mine]
    counts = hvd.allreduce(np.array([right.sum(), right.size], np.float64), op=hvd.Sum)
    return float(counts[0] / counts[1])


class Checkpoint:
    """Variables in a file of the job's checkpoint directories, written and read by rank 0; without, nothing."""

    def __init__(self, name: str, variables: list) -> None:
        directory = attempt_directory()
        self.path = directory / name if directory else None
        self.saved = next((path for folder in readable_directories() if (path := folder / name).exists()), None)
        self.variables = variables

    def save(self, epochs: int) -> None:
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".tmp.npz")
        values = {f"v{index}": np.asarray(variable) for index, variable in enumerate(self.variables)}
        np.savez(temporary, epochs=epochs, **values)
        os.replace(temporary, self.path)

    def resume(self) -> int:
        """Return the first epoch to train, the same on every rank."""
        epochs = 0
        if self.saved is not None and hvd.rank() == 0:
            saved = np.load(self.saved)
            epochs = int(saved["epochs"])
            for index, variable in enumerate(self.variables):
                variable.assign(saved[f"v{index}"])
            print(f"resumed from {self.saved} after {epochs}", flush=True)
        return int(hvd.broadcast_object(epochs, 0))


if __name__ == "__main__":
    main()
