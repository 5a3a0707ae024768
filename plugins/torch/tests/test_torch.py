"""ringtrain.torch does what numpy and one process do, in worlds of one to four ranks."""

import pytest
from frameworks.harness import SIZES, TORCH_DEVICES, Checks, device_env

MODULES = (
    "torch_training",
    "torch_optimizer",
    "torch_host",
    "torch_database",
    "torch_replicas",
    "torch_state",
    "torch_reductions",
    "torch_exchanges",
    "torch_errors",
    "torch_names",
    "torch_world",
)
CHECKS = {device: Checks("torch", MODULES, device_env(device)) for device in TORCH_DEVICES}


@pytest.mark.sampled(1, of="size", each="check", one_in=2, can_run=lambda size: size > 1)
@pytest.mark.parametrize("check", CHECKS["cpu"].names())
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"ranks-{size}")
@pytest.mark.parametrize("device", CHECKS)
def test_torch(check, size, device, among):
    """The check holds on every rank, with tensors on the CPU and, where there is a GPU, on CUDA."""
    assert not CHECKS[device].failure(check, size, among)
