"""Values of frameworks in a checkpoint, without their frameworks."""

import numpy as np
import pytest

from ringtrain.checkpoint.format import join
from ringtrain.errors import ConfigurationError


def test_a_tensor_is_its_array_if_it_is_not_read_yet() -> None:
    """So that its framework is not imported."""
    arrays = {"w": np.arange(3)}
    found = join({"layer": [{"$tensor": "w", "dtype": "float8_e4m3fn"}]}, arrays, lazy=True)
    assert found["layer"][0] is arrays["w"]


@pytest.mark.parametrize("lazy", [False, True])
def test_a_value_that_no_codec_knows_is_named(lazy: bool) -> None:
    """As of a later version, or of a plugin that is not installed."""
    with pytest.raises(ConfigurationError, match=r"found a value of kind '\$sparse', which this version"):
        join({"layer": {"$sparse": [2, 3]}}, {"w": np.arange(3)}, lazy)
