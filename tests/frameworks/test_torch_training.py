"""Models trained with ringtrain.torch on one to four ranks are those of one process on the pooled batch."""

import pytest
from frameworks.harness import checks_in, failures

MODULE = "torch_training"


@pytest.mark.parametrize("check", checks_in(MODULE))
@pytest.mark.parametrize("size", [1, 2, 3, 4], ids=lambda size: f"ranks-{size}")
def test_torch_training(check, size):
    """The check holds on every rank."""
    assert check not in failures(MODULE, size), failures(MODULE, size)[check]
