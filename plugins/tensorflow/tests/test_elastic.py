"""ringtrain.tensorflow and ringtrain.keras in worlds that change while their processes live."""

import pytest
from frameworks.harness import Scenarios

SCENARIOS = {
    "keras-3": (
        "functions_go_on_in_worlds_of_other_sizes",
        "sessions_go_on_after_a_loss",
        "fit_goes_on_within_the_epoch",
        "passes_of_an_update_begin_anew",
        "a_host_optimizer_goes_on_in_worlds_of_other_sizes",
    ),
    "keras-2": (
        "fit_goes_on_within_the_epoch",
        "legacy_optimizers_are_kept",
        "a_host_optimizer_goes_on_in_worlds_of_other_sizes",
    ),
}


CHECKS = {
    "keras-3": Scenarios("keras", "tensorflow_elastic"),
    "keras-2": Scenarios("tf_keras", "tensorflow_elastic", (("TF_USE_LEGACY_KERAS", "1"),)),
}


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize(
    ("keras", "scenario"), [(keras, scenario) for keras, scenarios in SCENARIOS.items() for scenario in scenarios]
)
def test_tensorflow(keras: str, scenario: str) -> None:
    """Survivors' processes continue, and each step counts once."""
    assert not CHECKS[keras].failure(f"check_{scenario}")


def test_every_scenario_is_played() -> None:
    played = {f"check_{scenario}" for scenarios in SCENARIOS.values() for scenario in scenarios}
    assert played == set(CHECKS["keras-3"].names())
