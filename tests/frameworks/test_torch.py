"""ringtrain.torch does what numpy and one process do, in worlds of one to four ranks."""

import pytest
from frameworks.harness import SIZES, checks_in, failures

MODULES = ("torch_training", "torch_collectives")


@pytest.mark.parametrize("check", checks_in(*MODULES))
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"ranks-{size}")
def test_torch(check, size):
    """The check holds on every rank."""
    assert check not in failures(MODULES, size), failures(MODULES, size)[check]
