"""A network on digits in JAX, whose weights and optimizer state live in host memory.

ringtrain run -np 2 python examples/frameworks/jax_mnist.py
dtj local manifests/samples/jax-mnist.yaml
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from digits import load_digits

import ringtrain as rt
import ringtrain.jax as hvd
from ringtrain.checkpoint import Checkpoints, job_directory
from ringtrain.data import shard
from ringtrain.optim import Adam


def network(pixels: int) -> dict[str, dict[str, jax.Array]]:
    """The weights of three dense layers."""
    rng = np.random.default_rng(0)
    sizes = [pixels, 64, 64, 10]
    return {
        f"layer{i}": {
            "w": jnp.asarray(rng.normal(size=sizes[i : i + 2]) * np.sqrt(2 / sizes[i]), "float32"),
            "b": jnp.zeros(sizes[i + 1]),
        }
        for i in range(3)
    }


def scores(params, images):
    """The ten scores of each image."""
    x = images.reshape(len(images), -1)
    for name in ("layer0", "layer1"):
        x = jax.nn.relu(x @ params[name]["w"] + params[name]["b"])
    return x @ params["layer2"]["w"] + params["layer2"]["b"]


def loss_of(params, images, labels):
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(scores(params, images)), labels[:, None], axis=1))


def accuracy(params, data) -> float:
    """Share of test images that are recognised; every rank looks at its part of them."""
    mine = slice(hvd.rank(), None, hvd.size())
    right = np.asarray(scores(params, data.test_images[mine])).argmax(axis=1) == data.test_labels[mine]
    counts = hvd.allreduce(jnp.asarray([right.sum(), right.size], "float32"), op=hvd.Sum)
    return float(counts[0] / counts[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--data-dir", type=Path, help="directory with MNIST's IDX files")
    parser.add_argument("--checkpoint-dir", type=Path, help="default: the job's, if it keeps any")
    options = parser.parse_args()
    hvd.init()
    data = load_digits(options.data_dir)
    optimizer = hvd.HostOptimizer(Adam(lr=2e-3))
    state = optimizer.init(network(data.train_images[0].size))
    directory = options.checkpoint_dir or job_directory()
    checkpoints = Checkpoints(directory) if directory else None
    saved = checkpoints.latest() if checkpoints else None
    if saved is not None:
        optimizer.load_state_dict(saved.state["optimizer"])
        state = optimizer.state()
        if hvd.rank() == 0:
            print(f"resumed from {saved.path} after {saved.step}", flush=True)
    params = optimizer.params()

    @jax.jit
    def step(params, state, images, labels):
        loss, grads = optimizer.value_and_grad(loss_of)(params, images, labels)
        updates, state = optimizer.update(grads, state)
        return optimizer.apply_updates(params, updates), state, loss

    batches = shard(len(data.train_images), batch_size=options.batch_size, seed=0, last="dropped")
    for epoch in range(saved.step if saved else 0, options.epochs):
        parts = list(batches.epoch(epoch))
        for number, batch in enumerate(parts):
            images, labels = data.train_images[batch.indices], data.train_labels[batch.indices]
            params, state, loss = step(params, state, images, labels)
            done = epoch * len(parts) + number + 1
            rt.report(step=done, epoch=epoch, samples=batch.count, loss=float(loss), unit="images")
        mean, found = float(hvd.allreduce(loss)), accuracy(params, data)
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}/{options.epochs}  loss {mean:.3f}  accuracy {found:.3f}", flush=True)
        if checkpoints:  # every rank gives its part of the state, and rank 0 writes
            checkpoints.save(epoch + 1, {"optimizer": optimizer.state_dict(root=0)})
    found = accuracy(params, data)
    if hvd.rank() == 0:
        print(f"test accuracy: {found:.3f}", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
