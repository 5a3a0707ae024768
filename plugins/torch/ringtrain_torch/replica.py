"""Digest of a model's parameters for comparison between ranks. From a device, only sums are copied to the host."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ringtrain.adapter import OptimizerReplica
from ringtrain_torch.bridge import as_array, real_tensor, to_arrays
from ringtrain_torch.buckets import Param
from ringtrain_torch.fingerprint import bits_of


def torch_replica_of(names: Mapping[Param, str], groups: Sequence[Mapping[str, Any]], part: int) -> OptimizerReplica:
    """Return a digest of this rank's trained weights, and its learning rates, for comparison with other ranks.

    Only a part of the weights is in the digest; `part` is the number of that part.
    """
    params = sorted((param for param in names if param.requires_grad), key=lambda param: names[param])
    sizes = [(param.shape[0] if param.dim() else 1, param.nbytes) for param in params]
    cut = repr([(names[param], tuple(param.shape), str(param.dtype)) for param in params])
    parts = [_parameter_rows(params[index], *rows) for index, *rows in OptimizerReplica.rows(sizes, part)]
    return OptimizerReplica(
        cut,
        _torch_platform(params),
        _torch_parameters_digest(parts),
        [_group_learning_rate(group.get("lr")) for group in groups],
    )


def _parameter_rows(param: Param, first: int, behind: int) -> torch.Tensor:
    values = param.detach()
    return real_tensor(values[first:behind] if values.dim() else values)


def _torch_parameters_digest(parts: Sequence[torch.Tensor]) -> int:
    if all(part.is_cpu for part in parts):
        return OptimizerReplica.digest(as_array(part.contiguous()).reshape(-1).view("uint8") for part in parts)
    return sum_of_bits(parts)


def sum_of_bits(parts: Sequence[torch.Tensor]) -> int:
    """Return the sum of the bits of tensors on a device. Only one sum per tensor is copied to the host."""
    sums = [bits_of(part, whole=True) for part in parts]
    return sum(int(array) for array in to_arrays(sums)())


def _group_learning_rate(given: Any) -> float:
    """Return the learning rate of a group, or 0 if it is missing or on a device: reading would wait."""
    return float(given) if isinstance(given, int | float) or getattr(given, "is_cpu", False) else 0.0


def _torch_platform(params: Sequence[Param]) -> str:
    kinds = sorted({str(param.device.type) for param in params})
    devices = [torch.get_device_module(kind).get_device_name() for kind in kinds if kind == "cuda"]
    host = OptimizerReplica.processor(), torch.get_num_threads(), torch.backends.cpu.get_cpu_capability()
    return f"{torch.__version__} {kinds} {devices} {host}"
