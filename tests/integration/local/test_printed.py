"""Progress that scripts print, in jobs of `dtj local`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commands import completed
from support.jobs import job

BENCHMARK = """
import time
for step in (1, 10, 20):
    time.sleep(0.02)
    print(f"{step}\\timages/sec: 57.5 +/- 0.1 (jitter = 0.3)\\t{8 - step / 10:.3f}", flush=True)
"""
OWN = "print('step 7 of 9, cost $3: loss 0.5')"


def _manifest(folder: Path, program: str, logs: dict[str, Any]) -> Path:
    wanted = job("t")
    wanted["spec"]["logs"] = logs
    wanted["spec"]["worker"]["template"]["spec"]["containers"][0]["command"] = [sys.executable, "-c", program]
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(wanted))
    return path


def _dtj(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "ringtrain_client.cli", *words]
    return completed(command, cwd=folder)


@pytest.mark.parametrize(
    ("program", "logs", "progress"),
    [
        (BENCHMARK, {}, {"step": 20, "loss": 6.0, "unit": "images"}),
        (
            OWN,
            {"metrics": r"step (?P<step>\d+) of (?P<total>\d+), cost \$(?P<cost>\d+): loss (?P<loss>\S+)$"},
            {"step": 7, "totalSteps": 9, "loss": 0.5, "metrics": {"cost": 3.0}},
        ),
    ],
    ids=["benchmark", "rule"],
)
def test_the_status_has_what_is_printed(
    program: str, logs: dict[str, Any], progress: dict[str, Any], tmp_path: Path
) -> None:
    """As if the ranks had reported it; the rule arrives as it was written."""
    done = _dtj(tmp_path, "local", "--plain", str(_manifest(tmp_path, program, logs)))
    assert done.returncode == 0, done.stdout + done.stderr
    (kept,) = (tmp_path / "runs").glob("*/job.json")
    found = json.loads(kept.read_text())["status"]["progress"]
    assert {key: found.get(key) for key in progress} == progress


@pytest.mark.parametrize("words", [("validate",), ("local", "--plain")], ids=["validate", "local"])
def test_a_rule_that_is_none_is_refused(words: tuple[str, ...], tmp_path: Path) -> None:
    """By the field's name, with what is wrong with it."""
    done = _dtj(tmp_path, *words, str(_manifest(tmp_path, OWN, {"metrics": "(?P<loss>(a+)"})))
    assert done.returncode == 1
    assert "spec.logs.metrics" in done.stdout + done.stderr
    assert "is no valid regular expression at character" in done.stdout + done.stderr
