"""ringtrain.tensorflow and ringtrain.keras do what numpy and one process do, in worlds of one to three ranks."""

import pytest
from frameworks.harness import SIZES, Checks

CHECKS = Checks(
    "keras",
    (
        "tensorflow_names",
        "tensorflow_training",
        "tensorflow_replicas",
        "tensorflow_v1",
        "tensorflow_graphs",
        "keras_training",
        "tensorflow_reductions",
        "tensorflow_exchanges",
        "tensorflow_world",
    ),
)


# Four ranks differ from three in what the checks of PyTorch see, too, and TensorFlow takes minutes for it. Two
# ranks run most of this with Keras 2 in every run.
@pytest.mark.sampled(1, of="size", each="check", one_in=3, can_run=lambda size: size > 1)
@pytest.mark.parametrize("check", CHECKS.names())
@pytest.mark.parametrize("size", SIZES[:3], ids=lambda size: f"ranks-{size}")
def test_tensorflow(check, size, among):
    """The check succeeds on every rank."""
    assert not CHECKS.failure(check, size, among)
