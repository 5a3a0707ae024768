"""ringtrain.tensorflow and ringtrain.keras in worlds that change while their processes live."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
SCENARIOS = {
    "keras-3": (
        "functions_go_on_in_worlds_of_other_sizes",
        "sessions_go_on_after_a_loss",
        "fit_goes_on_within_the_epoch",
        "passes_of_an_update_begin_anew",
    ),
    "keras-2": ("fit_goes_on_within_the_epoch", "legacy_optimizers_are_kept"),
}


@functools.cache
def _failed(keras: str) -> dict[str, str]:
    scenarios = [f"check_{name}" for name in SCENARIOS[keras]]
    env = {"TF_USE_LEGACY_KERAS": "1" if keras == "keras-2" else "0", "TF_CPP_MIN_LOG_LEVEL": "3"}
    ended = subprocess.run(
        [sys.executable, "-m", "frameworks.tensorflow_elastic", *scenarios],
        cwd=TESTS,
        env={**os.environ, **env, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    return json.loads(ended.stdout) if ended.stdout else {"*": ended.stderr[-3000:]}


@pytest.mark.parametrize(
    ("keras", "scenario"), [(keras, scenario) for keras, scenarios in SCENARIOS.items() for scenario in scenarios]
)
def test_tensorflow(keras: str, scenario: str) -> None:
    """Survivors keep their processes, and each step counts once."""
    failed = _failed(keras)
    assert (failed.get("*", ""), failed.get(f"check_{scenario}", "")) == ("", "")
