"""Make targets and scripts that the workflows run exist in the repository."""

import os
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_what_runs_before_a_commit_is_a_part_of_lint() -> None:
    """Each hook of .pre-commit-config.yaml is a line of `make lint`, on the files that are committed or on all."""
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    hooks = [hook for repo in config["repos"] for hook in repo["hooks"]]
    rules = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    lines = [line.strip().replace("$(BIN)", ".venv/bin").removesuffix(" .") for line in rules[1].splitlines()]
    assert hooks
    assert [hook["entry"] for hook in hooks if hook["entry"] not in lines] == []


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_what_a_workflow_runs_is_here(workflow: Path) -> None:
    """Every make target has a rule, every script may be run; Kubernetes is as new as the chart asks for."""
    document = yaml.safe_load(workflow.read_text())
    steps = [step for job in document["jobs"].values() for step in job["steps"]]
    lines = [line.strip() for step in steps for line in step.get("run", "").splitlines()]
    makes = [line.split()[1] for line in lines if line.startswith("make ")]
    scripts = [line.split()[0] for line in lines if line.startswith((".", "tests/"))]
    assert makes or scripts
    assert set(makes) <= TARGETS
    assert [s for s in scripts if not os.access(ROOT / s, os.X_OK)] == []
    versions = re.findall(r"[\"v](1\.\d+)\.", workflow.read_text())
    assert versions or workflow.stem == "release", "no cluster is named, and the tests need one"
    assert not versions or min(int(v.partition(".")[2]) for v in versions) >= 30
