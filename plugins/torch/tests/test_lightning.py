"""ringtrain.lightning trains as Lightning does in one process, in worlds of one to three ranks."""

import pytest
from frameworks.harness import Checks
from support.needs import need

need("lightning")

CHECKS = Checks("lightning", ("lightning_training",))


@pytest.mark.sampled(1, of="size", each="check", one_in=3, can_run=lambda size: size > 1)
@pytest.mark.parametrize("check", CHECKS.names())
@pytest.mark.parametrize("size", [1, 2, 3], ids=lambda size: f"ranks-{size}")
def test_lightning(check, size, among):
    assert not CHECKS.failure(check, size, among)
