"""Batch normalisation over the batches of all ranks.

`torch.nn.SyncBatchNorm` synchronizes only through torch.distributed. Without it, it silently normalises each rank's
batch alone. With this module imported, it works in a world of ringtrain like our `SyncBatchNorm`, unless
torch.distributed is in use: a script for DDP can retain its `convert_sync_batchnorm(model)`.
"""

from typing import Any, Self

import torch
from torch import distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ringtrain import global_process_set, is_initialized
from ringtrain.adapter import members
from ringtrain.errors import counted
from ringtrain_torch.gather import allgather


class SyncBatchNorm(_BatchNorm):
    """N-dimensional batch normalisation; in training, mean and variance are computed over all ranks' batches.

    For arguments and shapes see `torch.nn.BatchNorm1d`; any device. Batches may differ in size. Ranks exchange count,
    mean and sum of squared deviations in one allgather, combined after Chan, Golub & LeVeque 1983; gradients flow
    through it.
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

    @classmethod
    def convert_sync_batchnorm(cls, module: nn.Module) -> nn.Module:
        """Replace each batch normalisation layer in `module` by a `SyncBatchNorm` with its parameters and statistics;
        return the module. Create optimizers only afterwards."""
        if isinstance(module, _BatchNorm) and not isinstance(module, cls):
            return cls._like(module)
        for name, child in module.named_children():
            module.add_module(name, cls.convert_sync_batchnorm(child))
        return module

    @classmethod
    def _like(cls, layer: Any) -> Self:
        made = cls(layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats)
        made.weight, made.bias = layer.weight, layer.bias
        made.running_mean, made.running_var = layer.running_mean, layer.running_var
        made.num_batches_tracked = layer.num_batches_tracked
        return made.train(layer.training)

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"SyncBatchNorm: input has {counted(input.dim(), 'dimension')}; expected (N, C, ...)")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)
        if not _uses_batch(self) or members(global_process_set) == 1:
            return super().forward(input)
        return _normalised_batch(self, input)


def _uses_batch(layer: Any) -> bool:
    return layer.training or layer.running_mean is None


def _normalised_batch(layer: Any, input: torch.Tensor) -> torch.Tensor:
    """Return `input` normalised by `layer` over all ranks' batches. Updates the running statistics of `layer`."""
    count, mean, variance = _batch_moments(input)
    if layer.training and layer.track_running_stats:
        _track_batch_moments(layer, count, mean.detach(), variance.detach())
    shape = (1, -1) + (1,) * (input.dim() - 2)
    wide = input.to(mean.dtype)  # a half type would round the difference to the mean away
    output = (wide - mean.view(shape)) * torch.rsqrt(variance + layer.eps).view(shape)
    if layer.affine:
        output = output * layer.weight.view(shape) + layer.bias.view(shape)
    return output.to(input.dtype)


def _track_batch_moments(layer: Any, count: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> None:
    layer.num_batches_tracked.add_(1)
    average = 1.0 / float(layer.num_batches_tracked) if layer.momentum is None else layer.momentum
    weight = average * count.clamp(max=1)  # as in PyTorch: a batch that is empty on all ranks changes nothing
    unbiased = variance * count / (count - 1).clamp(min=1)
    layer.running_mean.mul_(1 - weight).add_(mean * weight)
    layer.running_var.mul_(1 - weight).add_(unbiased * weight)


def _batch_moments(input: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the count, mean and biased variance of each channel over all ranks, in float32 or wider."""
    wide = input.to(torch.promote_types(input.dtype, torch.float32)).transpose(0, 1).flatten(1)
    own_count = torch.full((1,), float(wide.shape[1]), dtype=wide.dtype, device=wide.device)
    own_mean = wide.sum(dim=1) / own_count.clamp(min=1)
    own_deviation = (wide - own_mean[:, None]).square().sum(dim=1)
    row = torch.cat([own_count, own_mean, own_deviation]).unsqueeze(0)
    if row.requires_grad:  # the gradient is that of all ranks' losses, while Horovod's allgather returns their mean
        row.register_hook(lambda grad: grad * members(global_process_set))
    rows = allgather(row, process_set=global_process_set)
    channels = wide.shape[0]
    counts, means, deviations = rows[:, :1], rows[:, 1 : 1 + channels], rows[:, 1 + channels :]
    count = counts.sum()
    mean = (counts * means).sum(dim=0) / count.clamp(min=1)
    deviation = deviations.sum(dim=0) + (counts * (means - mean).square()).sum(dim=0)
    return count.detach(), mean, deviation / count.clamp(min=1)


_forward_of_torch = nn.SyncBatchNorm.forward


def _forward(self: nn.SyncBatchNorm, input: torch.Tensor) -> torch.Tensor:
    in_use = distributed.is_available() and distributed.is_initialized()
    if in_use or not is_initialized() or members(global_process_set) == 1 or not _uses_batch(self):
        return _forward_of_torch(self, input)
    self._check_input_dim(input)
    return _normalised_batch(self, input)


nn.SyncBatchNorm.forward = _forward
