"""TensorFlow's gradients are reduced while the backward pass goes on, with Keras 3 and Keras 2."""

import pytest
from frameworks.harness import Scenarios

CHECKS = {
    "keras-3": Scenarios("keras", "tensorflow_overlap"),
    "keras-2": Scenarios("tf_keras", "tensorflow_overlap", (("TF_USE_LEGACY_KERAS", "1"),)),
}
OF_KERAS = ("check_fit_of_keras", "check_a_host_strategy")


CASES = [("keras-3", check) for check in CHECKS["keras-3"].names()] + [("keras-2", check) for check in OF_KERAS]


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize(("keras", "check"), CASES)
def test_overlap(keras: str, check: str) -> None:
    """The check succeeds on both ranks."""
    assert not CHECKS[keras].failure(check)
