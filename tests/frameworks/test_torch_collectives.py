"""ringtrain.torch's collectives do what numpy does, forward and backward, in worlds of one to four ranks."""

import pytest
from frameworks.harness import checks_in, failures

MODULE = "torch_collectives"


@pytest.mark.parametrize("check", checks_in(MODULE))
@pytest.mark.parametrize("size", [1, 2, 3, 4], ids=lambda size: f"ranks-{size}")
def test_torch_collectives(check, size):
    """The check holds on every rank."""
    assert check not in failures(MODULE, size), failures(MODULE, size)[check]
