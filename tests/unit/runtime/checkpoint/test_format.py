"""Values of frameworks in a checkpoint, without their frameworks."""

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

from ringtrain.checkpoint.format import join, split
from ringtrain.errors import ConfigurationError


def test_a_tensor_is_its_array_if_it_is_not_read_yet() -> None:
    """So that its framework is not imported."""
    arrays = {"w": np.arange(3)}
    found = join({"layer": [{"$tensor": "w", "dtype": "float8_e4m3fn"}]}, arrays, lazy=True)
    assert found["layer"][0] is arrays["w"]


@pytest.mark.parametrize("metadata", [None, {"layer": {"version": 2}}], ids=["none", "versions"])
def test_the_versions_of_a_model_s_state_are_saved_with_it(metadata: Any) -> None:
    """PyTorch's state_dict() has them in an attribute, by which load_state_dict() converts an older state."""
    state = OrderedDict(weight=np.arange(3.0))
    if metadata is not None:
        vars(state)["_metadata"] = metadata
    found = join(*split(state))
    assert type(found) is OrderedDict
    assert found["weight"].tolist() == [0.0, 1.0, 2.0]
    assert vars(found) == vars(state)


@pytest.mark.parametrize("lazy", [False, True])
def test_a_value_that_no_codec_knows_is_named(lazy: bool) -> None:
    """As of a later version, or of a plugin that is not installed."""
    with pytest.raises(ConfigurationError, match=r"found a value of kind '\$sparse', which this version"):
        join({"layer": {"$sparse": [2, 3]}}, {"w": np.arange(3)}, lazy)
