"""Simulated devices on one to four ranks train like one device on the pooled batch."""

import pytest
from frameworks.harness import SIZES, Checks

CHECKS = Checks("ringtrain.device", ("device_training",))


@pytest.mark.parametrize("check", CHECKS.names())
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"ranks-{size}")
def test_device(check, size):
    """The check holds on every rank."""
    assert not CHECKS.failure(check, size)
