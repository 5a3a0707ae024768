"""Batch normalisation over the batches of all ranks."""

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from ringtrain.process_groups.process_sets import global_process_set, members
from ringtrain.torch.gather import allgather


class SyncBatchNorm(_BatchNorm):
    """N-dimensional batch normalisation whose mean and variance in training are those of all ranks' batches.

    Arguments and shapes as of `torch.nn.BatchNorm1d`, on any device. Batches may differ in size. Ranks exchange
    count, mean and sum of squared deviations in one allgather, combined after Chan, Golub & LeVeque 1983;
    gradients flow through it.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"SyncBatchNorm: input has {input.dim()} dimensions; expected (N, C, ...)")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)
        use_batch = self.training or self.running_mean is None
        if not use_batch or members(global_process_set) == 1:
            return super().forward(input)
        count, mean, variance = _moments(input)
        if self.training and self.track_running_stats:
            self._track(count, mean.detach(), variance.detach())
        shape = (1, -1) + (1,) * (input.dim() - 2)
        wide = input.to(mean.dtype)  # a half type would round away what an input differs from its mean by
        output = (wide - mean.view(shape)) * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            output = output * self.weight.view(shape) + self.bias.view(shape)
        return output.to(input.dtype)

    def _track(self, count: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> None:
        batches: Any = self.num_batches_tracked
        running_mean: Any = self.running_mean
        running_var: Any = self.running_var
        batches.add_(1)
        average = 1.0 / float(batches) if self.momentum is None else self.momentum
        weight = average * count.clamp(max=1)  # as PyTorch: a batch that is empty on all ranks changes nothing
        unbiased = variance * count / (count - 1).clamp(min=1)
        running_mean.mul_(1 - weight).add_(mean * weight)
        running_var.mul_(1 - weight).add_(unbiased * weight)


def _moments(input: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return count, mean and variance (biased) per channel over all ranks, in float32 at least."""
    wide = input.to(torch.promote_types(input.dtype, torch.float32)).transpose(0, 1).flatten(1)
    own_count = torch.full((1,), float(wide.shape[1]), dtype=wide.dtype, device=wide.device)
    own_mean = wide.sum(dim=1) / own_count.clamp(min=1)
    own_deviation = (wide - own_mean[:, None]).square().sum(dim=1)
    row = torch.cat([own_count, own_mean, own_deviation]).unsqueeze(0)
    if row.requires_grad:  # the gradient is that of all ranks' losses, and Horovod's allgather gives their mean
        row.register_hook(lambda grad: grad * members(global_process_set))
    rows = allgather(row, process_set=global_process_set)
    channels = wide.shape[0]
    counts, means, deviations = rows[:, :1], rows[:, 1 : 1 + channels], rows[:, 1 + channels :]
    count = counts.sum()
    mean = (counts * means).sum(dim=0) / count.clamp(min=1)
    deviation = deviations.sum(dim=0) + (counts * (means - mean).square()).sum(dim=0)
    return count.detach(), mean, deviation / count.clamp(min=1)
