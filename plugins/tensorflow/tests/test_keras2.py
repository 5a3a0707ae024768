"""ringtrain.tensorflow and ringtrain.keras do with Keras 2 what they do with Keras 3; its legacy optimizers."""

import pytest
from frameworks.harness import Checks

CHECKS = Checks(
    "tf_keras",
    ("tensorflow_names", "tensorflow_training", "keras_training", "keras_legacy"),
    (("TF_USE_LEGACY_KERAS", "1"),),
)


@pytest.mark.sampled(1, of="size", each="check", one_in=3)
@pytest.mark.parametrize("check", CHECKS.names())
@pytest.mark.parametrize("size", [2], ids=lambda size: f"ranks-{size}")
def test_keras2(check, size, among):
    """The check succeeds on every rank."""
    assert not CHECKS.failure(check, size, among)
