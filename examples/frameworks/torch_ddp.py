"""Plain PyTorch DDP on gloo: the agent's environment is all that it needs.

dtj local manifests/samples/torch-ddp.yaml
torchrun --nproc-per-node 2 examples/frameworks/torch_ddp.py
"""

import argparse

import torch
import torch.distributed as dist
from digits import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ringtrain


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
    dataset = torch.utils.data.TensorDataset(
        torch.from_numpy(data.train_images), torch.from_numpy(data.train_labels)
    )
    sampler = torch.utils.data.DistributedSampler(dataset, size, rank)
    loader = torch.utils.data.DataLoader(dataset, options.batch_size, sampler=sampler)
    step = 0
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            step += 1
            ringtrain.report(step=step, epoch=epoch, samples=len(images), loss=loss.item(), unit="images")
    mine = slice(rank, None, size)
    with torch.no_grad():
        right = model(torch.from_numpy(data.test_images[mine])).argmax(1) == torch.from_numpy(
            data.test_labels[mine]
        )
    counts = torch.tensor([float(right.sum()), float(right.numel())])
    dist.all_reduce(counts)
    if rank == 0:
        print(f"test accuracy: {float(counts[0] / counts[1]):.4f} on {size} ranks", flush=True)
    dist.barrier()  # a rank that leaves while another is still in a collective can make that one abort
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
