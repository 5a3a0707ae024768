"""Plain PyTorch DDP on gloo: the agent's environment is all that it needs.

dtj local manifests/samples/torch-ddp.yaml
torchrun --nproc-per-node 2 examples/frameworks/torch_ddp.py
"""

import argparse

import torch
import torch.distributed as dist
from checkpoint import Checkpoint
from digits import Digits, load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ringtrain


def accuracy(model: nn.Module, data: Digits) -> float:
    """Share of test images that are recognised; every rank looks at its part of them."""
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    with torch.no_grad():
        guessed = model(torch.from_numpy(data.test_images[mine])).argmax(1)
    right = guessed == torch.from_numpy(data.test_labels[mine])
    counts = torch.tensor([float(right.sum()), float(right.numel())])
    dist.all_reduce(counts)
    return float(counts[0] / counts[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = load_digits()
    model = DistributedDataParallel(nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    dataset = torch.utils.data.TensorDataset(torch.from_numpy(data.train_images), torch.from_numpy(data.train_labels))
    sampler = torch.utils.data.DistributedSampler(dataset, size, rank)
    loader = torch.utils.data.DataLoader(dataset, options.batch_size, sampler=sampler)
    checkpoint = Checkpoint("torch-ddp.pt")
    state = checkpoint.load()  # every rank reads what rank 0 wrote before the last attempt ended
    if state is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    first = state["done"] if state else 0
    step = first * len(loader)
    for epoch in range(first, options.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            step += 1
            ringtrain.report(step=step, epoch=epoch, samples=len(images), loss=loss.item(), unit="images")
        score = accuracy(model, data)
        if rank == 0:
            print(f"epoch {epoch + 1}/{options.epochs}  loss {loss.item():.4f}  accuracy {score:.4f}", flush=True)
            checkpoint.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "done": epoch + 1})
    score = accuracy(model, data)
    if rank == 0:
        print(f"test accuracy: {score:.4f} on {size} ranks", flush=True)
    dist.barrier()  # a rank that leaves while another is still in a collective can make that one abort
    # DDP's reducer must not be the last owner of the group: PyTorch would join gloo's thread with the GIL held.
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
