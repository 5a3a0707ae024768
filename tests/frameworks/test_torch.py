"""ringtrain.torch does what numpy and one process do, in worlds of one to four ranks."""

import pytest
from frameworks.harness import SIZES, Checks

CHECKS = Checks(
    "torch",
    (
        "torch_training",
        "torch_optimizer",
        "torch_reductions",
        "torch_exchanges",
        "torch_errors",
        "torch_names",
        "torch_world",
    ),
)


@pytest.mark.sampled(2, of="size")
@pytest.mark.parametrize("check", CHECKS.names())
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"ranks-{size}")
def test_torch(check, size):
    """The check holds on every rank."""
    assert not CHECKS.failure(check, size)
