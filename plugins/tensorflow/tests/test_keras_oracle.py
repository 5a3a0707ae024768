"""Training scripts of Keras 3 and Keras 2 against one process on the joined batches."""

import pytest
from frameworks.harness import Checks

CHECKS = {
    "keras-3": Checks("keras", ("keras_oracle",)),
    "keras-2": Checks("tf_keras", ("keras_oracle",), (("TF_USE_LEGACY_KERAS", "1"),)),
}


@pytest.mark.sampled(1, of="keras", each="check", one_in=3)
@pytest.mark.parametrize("check", CHECKS["keras-3"].names())
@pytest.mark.parametrize("keras", CHECKS)
def test_like_one_process(keras: str, check: str, among: tuple[str, ...]) -> None:
    """The check succeeds on both ranks."""
    assert not CHECKS[keras].failure(check, 2, among)
