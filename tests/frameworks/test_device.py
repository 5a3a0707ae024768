"""Simulated devices on one to four ranks train like one device on the pooled batch."""

import pytest
from frameworks.harness import SIZES, checks_in, failures

MODULES = ("device_training",)


@pytest.mark.parametrize("check", checks_in(*MODULES))
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"ranks-{size}")
def test_device(check, size):
    """The check holds on every rank."""
    assert check not in failures(MODULES, size), failures(MODULES, size)[check]
