"""A convolutional network on digits in Keras. In two terminals, without a launcher:

    TF_CONFIG='{"cluster":{"worker":["localhost:3737","localhost:3738"]},"task":{"type":"worker","index":0}}' \\
        python examples/frameworks/keras_mnist.py
    … and "index":1 in the other. Or: dtj local manifests/samples/keras-mnist.yaml
"""

import argparse
from pathlib import Path

import keras
from digits import load_digits

import ringtrain.keras as hvd
from ringtrain.checkpoint import attempt_directory, readable_directories


def network(side: int) -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((side, side, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--data-dir", type=Path, help="directory with MNIST's IDX files")
    options = parser.parse_args()
    hvd.init()
    keras.utils.set_random_seed(hvd.rank())
    data = load_digits(options.data_dir)
    images, labels = (
        data.train_images[hvd.rank() :: hvd.size(), ..., None],
        data.train_labels[hvd.rank() :: hvd.size()],
    )
    steps = len(data.train_images) // hvd.size() // options.batch_size  # the same on every rank
    images, labels = images[: steps * options.batch_size], labels[: steps * options.batch_size]
    directory = attempt_directory()
    checkpoint = directory / "keras-mnist.keras" if directory else None
    epoch_file = checkpoint.with_suffix(".epoch") if checkpoint else None
    # The newest attempt that has saved both.
    epoch_files = [folder / "keras-mnist.epoch" for folder in readable_directories()]
    saved = next((path for path in epoch_files if path.exists() and path.with_suffix(".keras").exists()), None)

    first = 0
    if saved:
        model = hvd.load_model(saved.with_suffix(".keras"))
        first = int(saved.read_text())
        if hvd.rank() == 0:
            print(f"resumed from {saved.with_suffix('.keras')} after {first}", flush=True)
    else:
        model = network(images.shape[1])
        rate = 1e-3 * hvd.size() ** 0.5
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(
            hvd.DistributedOptimizer(keras.optimizers.Adam(rate)), loss, metrics=["accuracy"], jit_compile=False
        )
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.Report(options.batch_size, "images"),
    ]
    if checkpoint and epoch_file and hvd.rank() == 0:
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        callbacks.append(keras.callbacks.ModelCheckpoint(str(checkpoint)))
        callbacks.append(
            keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: epoch_file.write_text(str(epoch + 1)))
        )
    part = slice(hvd.rank(), None, hvd.size())
    test = data.test_images[part, ..., None], data.test_labels[part]
    model.fit(
        images,
        labels,
        batch_size=options.batch_size,
        epochs=options.epochs,
        initial_epoch=first,
        validation_data=test,
        callbacks=callbacks,
        verbose=2 if hvd.rank() == 0 else 0,
    )
    _, own = model.evaluate(*test, verbose=0)
    score = float(hvd.allreduce(own))
    if hvd.rank() == 0:
        print(f"test accuracy: {score:.4f}", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
