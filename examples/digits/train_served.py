"""Train on handwritten digits that data workers load: train.py, whose batches come from other processes.

    dtj local manifests/samples/digits-data.yaml

Batches are those of train.py in the same order, whatever becomes of a data worker: the weights have the same bits.
"""

import numpy as np
from model import backward, forward, loss
from train import accuracy, fingerprint, load, make_optimizer, parse_options

import ringtrain as rt
from ringtrain.data import Shard, shard
from ringtrain.data.service import distribute
from ringtrain.optim import HostOptimizer


def main() -> None:
    options = parse_options()
    rt.init()
    data = load(options.data_dir)
    part = shard(data.train_images, options.batch_size, seed=options.seed, last="weighted")
    optimizer = make_optimizer(options, part, data.train_images.shape[1])
    for epoch in range(options.epochs):
        last_loss = train_epoch(part, optimizer, epoch, options.epochs)
        if rt.rank() == 0:
            print(f"epoch {epoch + 1}/{options.epochs}  loss {last_loss:.4f}", flush=True)
    score = accuracy(data, optimizer)
    if rt.rank() == 0:
        print(f"weights sha256: {fingerprint(optimizer)}")
        print(f"test accuracy: {score:.4f}", flush=True)
    rt.shutdown()


def train_epoch(part: Shard, optimizer: HostOptimizer, epoch: int, epochs: int) -> float:
    """Return the mean loss of this rank's batches, which data workers have loaded."""
    losses = []
    batches = distribute("loading:load_digits", part, epoch=epoch)
    for step, batch in enumerate(batches, epoch * part.steps + 1):
        trace = forward(optimizer.weights, batch["images"])
        for name, gradient in backward(optimizer.weights, trace, batch["labels"]):
            optimizer.submit(name, gradient, batch.weight)
        losses.append(loss(trace, batch["labels"]))
        optimizer.step()
        rt.report(step=step, total_steps=epochs * part.steps, epoch=epoch, samples=batch.count, unit="images")
    return float(np.mean(losses))


if __name__ == "__main__":
    main()
