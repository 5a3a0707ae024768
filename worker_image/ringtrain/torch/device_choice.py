"""Which backend of torch.distributed tensors take: a pure function of what is asked for and what is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
import torch.distributed as dist

HOST: Final = ""  # no backend: tensors travel through host memory


@dataclass(frozen=True)
class TorchBackends:
    """What this process has. `by_device`: the backend's name for a type of device, as torch.distributed maps them,
    plugins' own (such as hccl) included. `nccl_usable`: NCCL is in this build, and there is a GPU."""

    by_device: Mapping[str, str]
    nccl_usable: bool

    @classmethod
    def here(cls) -> TorchBackends:
        nccl_usable = dist.is_available() and dist.is_nccl_available() and torch.cuda.is_available()
        return cls(dict(dist.Backend.default_device_backend_map), nccl_usable)


def backend_for(device: str, transport: str, encrypts: bool, backends: TorchBackends) -> str:
    """Return the name of the backend for tensors on the type `device`, or `HOST`.

    `transport`: of WorkerConfig. "torch" asks for the backend of any device; one that torch.distributed maps to
    nothing is looked for under the device's own name, and not found when its group is made. With "auto" NCCL is
    chosen for CUDA where it can be used, unless tensors are to be encrypted, which it can't. No other has one.
    """
    if transport == "torch":
        return backends.by_device.get(device, device)
    if transport == "auto" and not encrypts and device == "cuda" and backends.nccl_usable:
        return backends.by_device.get(device, HOST)
    return HOST
