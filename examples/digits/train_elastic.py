"""Train on handwritten digits while ranks are lost, replaced, added and taken away.

    python examples/digits/train_elastic.py                            # one process, whose world does not change
    ringtrain run -np 2 --min-np 1 --max-np 4 --on-loss Shrink python examples/digits/train_elastic.py
    dtj local manifests/samples/digits-elastic.yaml                    # what a cluster would run

Each step takes 64 images, whatever the number of ranks; every image counts once an epoch, through all of it.
"""

import argparse

import numpy as np
from model import backward, forward, initial_weights, loss
from train import Data, load

import ringtrain as rt
from ringtrain import elastic

GLOBAL_BATCH = 64
RATE, MOMENTUM = 0.05, 0.9


@elastic.run
def train(state: elastic.State, data: Data, epochs: int) -> None:
    """Entered again after each change of the world, with the state of the last committed step."""
    if rt.rank() == 0:
        print(f"{rt.size()} ranks go on with {state.shard.describe()}", flush=True)
    for epoch in state.shard.epochs(epochs):
        for batch in state.shard:
            labels = data.train_labels[batch.indices]
            trace = forward(state.weights, data.train_images[batch.indices])
            # Parts differ by an image where 64 does not divide: the weight makes the mean that of the whole.
            local = {name: g * np.float32(batch.weight) for name, g in backward(state.weights, trace, labels)}
            for name, gradient in zip(local, rt.grouped_allreduce(list(local.values())), strict=True):
                state.velocity[name] = MOMENTUM * state.velocity[name] + gradient
                state.weights[name] = state.weights[name] - np.float32(RATE) * state.velocity[name]
            state.step += 1
            rt.report(step=state.step, epoch=epoch, samples=batch.count, loss=loss(trace, labels), unit="images")
            state.commit()
        if rt.rank() == 0:
            print(f"epoch {epoch + 1}/{epochs}  accuracy {accuracy(state, data):.4f}", flush=True)


def accuracy(state: elastic.State, data: Data) -> float:
    """Share of the test images that are recognised."""
    return float((forward(state.weights, data.test_images).predictions == data.test_labels).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--epochs", type=int, default=40)
    options = parser.parse_args()
    rt.init()
    data = load(None)
    weights = initial_weights([data.train_images.shape[1], 128, 64, 10], seed=0)
    state = elastic.State(
        weights=weights,
        velocity={name: np.zeros_like(values) for name, values in weights.items()},
        shard=elastic.shard(data.train_images, elastic.FixedGlobal(GLOBAL_BATCH)),
        step=0,
    )
    train(state, data, options.epochs)
    if rt.rank() == 0:
        print(f"test accuracy: {accuracy(state, data):.4f}", flush=True)
    rt.shutdown()


if __name__ == "__main__":
    main()
