"""A convolutional network on digits in PyTorch, written as for Horovod: only the import is another.

python examples/frameworks/torch_mnist.py
ringtrain run -np 2 -H localhost:2 python examples/frameworks/torch_mnist.py
dtj local manifests/samples/torch-mnist.yaml
"""

import argparse
from pathlib import Path

import torch
from checkpoint import Checkpoint
from digits import Digits, load_digits
from torch import nn
from torch.nn import functional

import ringtrain as rt
import ringtrain.torch as hvd
from ringtrain.data import shard


class Network(nn.Module):
    """Two convolutions and two dense layers, for square images of any size."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 16, 3, padding=1)
        self.second = nn.Conv2d(16, 32, 3, padding=1)
        self.hidden = nn.Linear(32 * (side // 2) ** 2, 64)
        self.output = nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.first(images.unsqueeze(1)))
        x = functional.max_pool2d(functional.relu(self.second(x)), 2)
        return self.output(functional.relu(self.hidden(x.flatten(1))))


def train_epoch(model: nn.Module, optimizer, data: Digits, batches, epoch: int) -> float:
    model.train()
    loss = torch.zeros(())
    for step, batch in enumerate(batches):
        images, labels = (torch.from_numpy(a[batch.indices]) for a in (data.train_images, data.train_labels))
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        rt.report(
            step=epoch * len(batches) + step + 1, epoch=epoch, samples=batch.count, loss=loss.item(), unit="images"
        )
    return float(hvd.allreduce(loss.detach()))


def accuracy(model: nn.Module, data: Digits) -> float:
    """Share of test images that are recognised; every rank looks at its part of them."""
    model.eval()
    mine = slice(hvd.rank(), None, hvd.size())
    with torch.no_grad():
        right = model(torch.from_numpy(data.test_images[mine])).argmax(1) == torch.from_numpy(data.test_labels[mine])
    counts = hvd.allreduce(torch.tensor([float(right.sum()), float(right.numel())]), op=hvd.Sum)
    return float(counts[0] / counts[1])


def resume(checkpoint: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load on rank 0, if there is something, and give everyone its weights and state; return the first epoch."""
    state = checkpoint.load() if hvd.rank() == 0 else None
    if state is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    return int(hvd.broadcast_object(state["done"] if state else 0, root_rank=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--data-dir", type=Path, help="directory with MNIST's IDX files")
    parser.add_argument("--checkpoint-dir", type=Path, help="default: the job's, if it keeps any")
    options = parser.parse_args()
    hvd.init()
    torch.manual_seed(0)
    data = load_digits(options.data_dir)
    part = shard(data.train_images, options.batch_size, seed=0)
    model = Network(data.train_images.shape[-1])
    checkpoint = Checkpoint("torch-mnist.pt", options.checkpoint_dir)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    first = resume(checkpoint, model, optimizer)
    for epoch in range(first, options.epochs):
        loss = train_epoch(model, optimizer, data, list(part.epoch(epoch)), epoch)
        score = accuracy(model, data)
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}/{options.epochs}  loss {loss:.4f}  accuracy {score:.4f}", flush=True)
            checkpoint.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "done": epoch + 1})
    score = accuracy(model, data)
    if hvd.rank() == 0:
        print(f"test accuracy: {score:.4f}", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
