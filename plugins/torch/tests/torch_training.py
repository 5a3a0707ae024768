"""A small model, its batches on each rank and the training of one process on all of them."""

import functools

import numpy as np
import torch
from torch import nn

import ringtrain.torch as hvd

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
STEPS = 20

TORCH_RULES = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adam": lambda params: torch.optim.Adam(params, lr=1e-2),
    "adamw": lambda params: torch.optim.AdamW(params, lr=1e-2, weight_decay=0.01),
}


def model(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 2))


def batches(rank: int, steps: int = STEPS) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(100 + rank)
    return [(torch.randn(4, 6, generator=generator), torch.randn(4, 2, generator=generator)) for _ in range(steps)]


def pooled(steps: int = STEPS) -> list[tuple[torch.Tensor, torch.Tensor]]:
    everyone = [batches(rank, steps) for rank in range(SIZE)]
    return [tuple(torch.cat(parts) for parts in zip(*step, strict=True)) for step in zip(*everyone, strict=True)]


def train(net: nn.Module, optimizer, data) -> nn.Module:
    for x, y in data:
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
    return net


@functools.cache
def reference(rule: str, steps: int = STEPS) -> nn.Module:
    net = model()
    return train(net, TORCH_RULES[rule](net.parameters()), pooled(steps))


def distributed(net: nn.Module, rule: str = "sgd", **options):
    return hvd.DistributedOptimizer(TORCH_RULES[rule](net.parameters()), net.named_parameters(), **options)


def agree(net: nn.Module, other: nn.Module, tolerance: float = 1e-5) -> None:
    for (name, ours), theirs in zip(net.state_dict().items(), other.state_dict().values(), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=tolerance, atol=tolerance, err_msg=name)


def same_everywhere(net: nn.Module) -> None:
    """Assert that all ranks have the same bits."""
    flat = torch.cat([param.detach().reshape(-1) for param in net.parameters()])
    for row in hvd.allgather(flat.unsqueeze(0)):
        assert torch.equal(row, flat)
