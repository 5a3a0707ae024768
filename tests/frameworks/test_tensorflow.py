"""ringtrain.tensorflow and ringtrain.keras do what numpy and one process do, in worlds of one to four ranks."""

import pytest
from frameworks.harness import SIZES, Checks

CHECKS = Checks(
    "keras",
    (
        "tensorflow_names",
        "tensorflow_training",
        "tensorflow_v1",
        "tensorflow_graphs",
        "keras_training",
        "tensorflow_reductions",
        "tensorflow_exchanges",
        "tensorflow_world",
    ),
)


@pytest.mark.parametrize("check", CHECKS.names())
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"ranks-{size}")
def test_tensorflow(check, size):
    """The check holds on every rank."""
    assert not CHECKS.failure(check, size)
