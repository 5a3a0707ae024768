"""ringtrain.torch.DiLoCo does what torch does in one process that simulates all ranks."""

import pytest
from frameworks.harness import Checks

CHECKS = Checks("torch", ("torch_diloco",))


@pytest.mark.parametrize("check", CHECKS.names())
@pytest.mark.parametrize("size", [1, 2, 3], ids=lambda size: f"ranks-{size}")
def test_torch_diloco(check, size):
    """The check holds on every rank."""
    assert not CHECKS.failure(check, size)
