"""The host optimizer of Keras 3 and Keras 2 against one process with Keras' own optimizer."""

import pytest
from frameworks.harness import Checks

KERAS_2 = ("TF_USE_LEGACY_KERAS", "1")
GRPC = ("RINGTRAIN_TRANSPORT", "grpc")
CHECKS = {
    "keras-3": Checks("keras", ("keras_host",)),
    "keras-2": Checks("tf_keras", ("keras_host",), (KERAS_2,)),
    "keras-3-grpc": Checks("keras", ("keras_host",), (GRPC,)),
}
WORLDS = [("keras-3", 1), ("keras-3", 3), ("keras-2", 2), ("keras-3-grpc", 2)]


@pytest.mark.sampled(1, of="world", each="check", one_in=3, can_run=lambda world: world[1] > 1)
@pytest.mark.parametrize("check", CHECKS["keras-3"].names())
@pytest.mark.parametrize("world", WORLDS, ids=lambda world: "-".join(map(str, world)))
def test_like_one_process(world: tuple[str, int], check: str, among: tuple[str, ...]) -> None:
    """The check succeeds on all ranks."""
    keras, ranks = world
    assert not CHECKS[keras].failure(check, ranks, among)
