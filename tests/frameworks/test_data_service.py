"""ringtrain.tensorflow.data: a compute job serves a training job in every mode, and what dies comes back."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from frameworks.harness import ENV, Scenarios

SCENARIOS = Scenarios("tensorflow", "data_service")
SCRIPT = Path(__file__).with_name("data_service_scripts") / "mnist_data_service.py"
HOROVODRUN = Path(sys.executable).with_name("horovodrun")
DEADLINE_S = 300.0
MODES = {
    "as-it-comes": ((), ()),
    "shared": ((), ("--reuse-dataset",)),
    "in-turn": ((), ("--reuse-dataset", "--round-robin")),
    "a-dispatcher-for-each-rank": (("--dispatchers", "2"), ()),
    "training-side": (("--dispatcher-side", "training"), ("--reuse-dataset", "--round-robin")),
}


@pytest.mark.parametrize("check", SCENARIOS.names())
def test_data_service(check: str) -> None:
    """Compute job and training are worlds of their own, which a file brings together."""
    assert not SCENARIOS.failure(check)


def started(directory: Path, ranks: int, *words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [HOROVODRUN, "-np", str(ranks), sys.executable, *words],
        cwd=directory,
        env={**os.environ, **ENV, "TMPDIR": str(directory)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", MODES)
def test_both_commands_of_the_page(mode: str, tmp_path: Path) -> None:
    """A script in the shape of Horovod's example trains, and ends the compute job, which leaves no config."""
    of_the_service, of_the_script = MODES[mode]
    module = "ringtrain.tensorflow.data.compute_worker"
    compute = started(tmp_path, 4, "-m", module, *of_the_service, "compute.json")
    train = started(tmp_path, 2, str(SCRIPT), *of_the_script, "compute.json")
    try:
        trained, _ = train.communicate(timeout=DEADLINE_S)
        served, _ = compute.communicate(timeout=DEADLINE_S)
    finally:
        for job in (train, compute):
            job.terminate()
            job.wait(DEADLINE_S)
    assert (train.returncode, compute.returncode) == (0, 0), trained + served
    assert sorted(re.findall(r"rank \d of 2 trained 8 steps", trained)) == [
        f"rank {rank} of 2 trained 8 steps" for rank in (0, 1)
    ]
    assert not (tmp_path / "compute.json").exists()
