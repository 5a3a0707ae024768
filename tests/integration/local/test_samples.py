"""Samples of what a pod can have, as `dtj local` runs them."""

import sys
from pathlib import Path

import pytest
from support.commands import completed
from support.deadlines import patient

ROOT = Path(__file__).parents[3]
DTJ = Path(sys.executable).with_name("dtj")


@pytest.mark.parametrize(
    ("sample", "line"),
    [
        ("script-configmap", "[1] rank 1 of 2: the mean rank is 0.5"),
        ("placement", "[1] rank 1 runs"),
        ("pod-extras", "[3] rank 3 runs"),
        ("evaluator", "epoch 5: the error is 0.000"),
    ],
)
def test_a_sample_runs(sample: str, line: str, tmp_path: Path) -> None:
    command = [str(DTJ), "local", "--logs", "--plain", "--run-dir", str(tmp_path)]
    done = completed([*command, f"manifests/samples/{sample}.yaml"], cwd=ROOT, timeout=patient(120))
    assert done.returncode == 0, done.stdout + done.stderr
    by_itself = [log.read_text() for log in tmp_path.glob("*/pods/*-evaluator.log")]
    assert line in [*done.stdout.splitlines(), *"".join(by_itself).splitlines()]
