"""ringtrain.transformers' Trainer does what Hugging Face's does in one process, with 1 to 3 ranks."""

import pytest
from frameworks.harness import Checks
from support.needs import need

need("transformers", "accelerate")

CHECKS = Checks("transformers.trainer", ("transformers_training",))  # transformers alone imports next to nothing


@pytest.mark.sampled(1, of="size", each="check", one_in=3, can_run=lambda size: size > 1)
@pytest.mark.parametrize("check", CHECKS.names())
@pytest.mark.parametrize("size", [1, 2, 3], ids=lambda size: f"ranks-{size}")
def test_transformers(check, size, among):
    assert not CHECKS.failure(check, size, among)
