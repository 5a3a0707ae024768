"""Train a small network on handwritten digits, alone or on any number of ranks.

    python examples/digits/train.py                                              # one process
    ringtrain run -np 2 -H localhost:2 python examples/digits/train.py           # two ranks on this machine
    mpirun -np 2 -H localhost:2 python examples/digits/train.py                  # the same, started by MPI
    ringtrain run -np 2 --data-workers 2 python examples/digits/train.py --on-data-workers
    dtj local manifests/samples/digits-ring.yaml                                 # what a cluster would run

The data is `examples/digits.csv.gz`: 1797 images of 8 x 8, the test set of "Optical Recognition of Handwritten
Digits" (E. Alpaydin and C. Kaynak, UCI Machine Learning Repository, CC BY 4.0). With `--data-dir` it is MNIST's
IDX files.
"""

import argparse
import functools
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from model import Floats, backward, forward, initial_weights, loss
from numpy.typing import NDArray

import ringtrain as rt
from ringtrain.checkpoint import Checkpoints, ShardedCheckpoints, job_directory, job_uri
from ringtrain.data import Batch, Shard, read_mnist, shard
from ringtrain.optim import LAMB, SGD, Adam, AdamW, Cosine, HostOptimizer, Rule, Warmup

RULES: dict[str, Rule] = {
    "sgd": SGD(lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4),
    "adam": Adam(lr=2e-3),
    "adamw": AdamW(lr=2e-3),
    "lamb": LAMB(lr=1e-2),
}


@dataclass(frozen=True)
class Data:
    """Images as rows of floats in [0, 1], and their labels."""

    train_images: Floats
    train_labels: NDArray[np.intp]
    test_images: Floats
    test_labels: NDArray[np.intp]


def load(directory: Path | None) -> Data:
    if directory is not None:
        train, test = read_mnist(directory)
        rows = [part.images.reshape(len(part.images), -1).astype(np.float32) / 255 for part in (train, test)]
        return Data(rows[0], train.labels.astype(np.intp), rows[1], test.labels.astype(np.intp))
    images, labels = bundled()
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = (images[order] / 16).astype(np.float32), labels[order].astype(np.intp)
    return Data(images[360:], labels[360:], images[:360], labels[:360])


def bundled() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Images of shape (1797, 64) with values from 0 to 16, and their labels."""
    table = np.loadtxt(Path(__file__).parents[1] / "digits.csv.gz", delimiter=",")
    return table[:, :-1], table[:, -1]


def train(options: argparse.Namespace) -> None:
    data = load(options.data_dir)
    part = shard(data.train_images, options.batch_size, seed=options.seed, last="weighted")
    if rt.rank() == 0:
        print(part.describe(), flush=True)
    optimizer = make_optimizer(options, part, data.train_images.shape[1])
    checkpoints = open_checkpoints(options.checkpoint_dir or job_directory())
    first_epoch = resume(checkpoints, optimizer)
    for epoch in range(first_epoch, options.epochs):
        last_loss = train_epoch(data, part, optimizer, epoch, options.epochs, options.on_data_workers)
        score = accuracy(data, optimizer)
        if rt.rank() == 0:
            print(f"epoch {epoch + 1}/{options.epochs}  loss {last_loss:.4f}  accuracy {score:.4f}", flush=True)
        if checkpoints and ((epoch + 1) % options.checkpoint_every == 0 or epoch + 1 == options.epochs):
            save(checkpoints, optimizer, epoch + 1)
    score = accuracy(data, optimizer)
    if rt.rank() == 0:
        print(f"weights sha256: {fingerprint(optimizer)}")
        print(f"test accuracy: {score:.4f}", flush=True)


def make_optimizer(options: argparse.Namespace, part: Shard, features: int) -> HostOptimizer:
    """SGD's rate grows with the global batch, after a warm-up (Goyal et al. 2017); the others adapt."""
    warmup = min(3, options.epochs // 2) * part.steps
    scale = rt.size() if options.optimizer == "sgd" else 1
    rest = max(1, options.epochs * part.steps - warmup)
    return HostOptimizer(
        initial_weights([features, *options.hidden, 10], options.seed),
        RULES[options.optimizer],
        # Small enough that this small model has several buckets, and the ring works during the backward pass.
        bucket_bytes=16 * 1024,
        schedule=Warmup(warmup, scale=scale, start=1.0 if scale > 1 else 0.1, after=Cosine(rest, floor=0.02)),
    )


def epoch_of(
    data: Data, part: Shard, epoch: int, on_data_workers: bool
) -> Iterator[tuple[Batch, Floats, NDArray[np.intp]]]:
    """Yield each batch of this rank with its images and labels, loaded here or by data workers."""
    if on_data_workers:
        for loaded in rt.data.service.distribute("train:training_batch", part, epoch=epoch):
            yield loaded, loaded["images"], loaded["labels"]
        return
    for batch in part.epoch(epoch):
        yield batch, data.train_images[batch.indices], data.train_labels[batch.indices]


@functools.cache
def bundled_data() -> Data:
    """The bundled digits, read once by each loader process."""
    return load(None)


def training_batch(indices: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """Return a batch of samples. Data workers call this; they import this file as the module `train`."""
    data = bundled_data()
    return {"images": data.train_images[indices], "labels": data.train_labels[indices]}


def train_epoch(
    data: Data, part: Shard, optimizer: HostOptimizer, epoch: int, epochs: int, on_data_workers: bool
) -> float:
    """Return the mean loss of this rank's batches."""
    losses = []
    # Not optimizer.updates: a world of another size, whose epochs had other steps, may have made some of these.
    batches = enumerate(epoch_of(data, part, epoch, on_data_workers), epoch * part.steps + 1)
    for step, (batch, images, labels) in batches:
        trace = forward(optimizer.weights, images)
        for name, gradient in backward(optimizer.weights, trace, labels):
            optimizer.submit(name, gradient, batch.weight)
        losses.append(loss(trace, labels))
        optimizer.step()
        rt.report(
            step=step,
            total_steps=epochs * part.steps,
            epoch=epoch,
            samples=batch.count,
            loss=losses[-1],
            unit="images",
        )
    return float(np.mean(losses))


def accuracy(data: Data, optimizer: HostOptimizer) -> float:
    """Share of test images that are recognised; every rank looks at its part of them."""
    mine = slice(rt.rank(), None, rt.size())
    right = forward(optimizer.weights, data.test_images[mine]).predictions == data.test_labels[mine]
    counts = rt.allreduce(np.array([right.sum(), right.size], np.float64), op=rt.Sum)
    return float(counts[0] / counts[1])


def open_checkpoints(directory: Path | None) -> Checkpoints | ShardedCheckpoints | None:
    """Open the checkpoints in `directory`, else in the job's object store; None without either."""
    if directory:
        return Checkpoints(directory)
    return ShardedCheckpoints(job_uri()) if job_uri() else None


def save(checkpoints: Checkpoints | ShardedCheckpoints, optimizer: HostOptimizer, epochs: int) -> None:
    """Rank 0 writes all of the state into a directory; into a store every rank writes its part."""
    sharded = isinstance(checkpoints, ShardedCheckpoints)
    state = optimizer.shard_dict() if sharded else optimizer.state_dict(root=0)
    checkpoints.save(epochs, {"optimizer": state, "epochs": epochs})


def resume(checkpoints: Checkpoints | ShardedCheckpoints | None, optimizer: HostOptimizer) -> int:
    """Return the epoch to begin with: 0, or the one after the latest checkpoint."""
    saved = checkpoints.latest() if checkpoints else None
    if saved is None:
        return 0
    optimizer.load_state_dict(saved.state["optimizer"])
    if rt.rank() == 0:
        print(f"resumed from {saved.path} after {saved.state['epochs']} epochs", flush=True)
    return int(saved.state["epochs"])


def fingerprint(optimizer: HostOptimizer) -> str:
    """Equal for equal bits of all weights."""
    digest = hashlib.sha256()
    for weights in optimizer.weights.values():
        digest.update(weights.tobytes())
    return digest.hexdigest()[:16]


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--optimizer", choices=sorted(RULES), default="sgd")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--hidden", type=int, nargs="+", default=[128, 64], help="widths of the hidden layers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--on-data-workers", action="store_true", help="have data workers load the bundled digits")
    parser.add_argument("--data-dir", type=Path, help="directory with MNIST's IDX files, gzipped or not")
    parser.add_argument("--checkpoint-dir", type=Path, help="default: the job's, if it keeps any")
    parser.add_argument("--checkpoint-every", type=int, default=5, help="epochs between checkpoints")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    rt.init()
    try:
        train(options)
    finally:
        rt.shutdown()


if __name__ == "__main__":
    main()
