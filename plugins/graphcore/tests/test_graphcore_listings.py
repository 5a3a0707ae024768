"""Graphcore's two listings for training on many hosts run with the few lines changed that the page names."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from frameworks.harness import ENV
from frameworks.warm_python import shared_python
from graphcore_scripts import port
from support.deadlines import patient
from support.ports import free_addresses

SCRIPTS = Path(__file__).with_name("graphcore_scripts")
PAGE = (Path(__file__).parents[3] / "docs/migrate-from-graphcore.md").read_text()
DEADLINE_S = patient(300.0)
MPIRUN = ["mpirun", "-np", "2", "-H", "localhost:2", "--bind-to", "none", "--allow-run-as-root"]
LAUNCHERS = {"mpirun": MPIRUN, "horovodrun": [str(Path(sys.executable).with_name("horovodrun")), "-np", "2"]}


@pytest.fixture(scope="module")
def python() -> str:
    """A `python` that has imported TensorFlow with Keras 2."""
    return shared_python("tf_keras", TF_USE_LEGACY_KERAS="1")


def command(listing: str, folder: Path, python: str = sys.executable) -> list[str]:
    return [python, str(SCRIPTS / "port.py"), listing, "--num-steps", "12", "--model-dir", str(folder)]


def started(words: list[str], folder: Path, **env: str) -> "subprocess.Popen[str]":
    whole = {**os.environ, **ENV, "TF_USE_LEGACY_KERAS": "1", **env}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(words, cwd=folder, env=whole, text=True, **streams)  # type: ignore[call-overload, no-any-return]


def outputs(processes: "list[subprocess.Popen[str]]") -> list[str]:
    try:
        said = [process.communicate(timeout=DEADLINE_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * len(processes), "\n".join(said)
    return said


@pytest.mark.parametrize("listing", ["multi_worker.txt", "horovod.txt"])
def test_few_lines_change(listing: str) -> None:
    """No more than eight, each of which the page has."""
    before = (SCRIPTS / listing).read_text().splitlines()
    new = [line for line in port.ported(before) if line not in before]
    gone = [line for line in before if line not in port.ported(before)]
    assert len(new) <= 8
    for line in [*new, *gone]:
        assert line in PAGE


def test_two_terminals_and_an_evaluator(tmp_path: Path, python: str) -> None:
    """TF_CONFIG alone starts them; the evaluator's process ends with metrics of the last step."""
    cluster = {"worker": free_addresses(2), "evaluator": free_addresses(1)}
    tasks = [("worker", 0), ("worker", 1), ("evaluator", 0)]
    processes = [
        started(
            command("multi_worker.txt", tmp_path / "model", python),
            tmp_path,
            TF_CONFIG=json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}}),
        )
        for kind, index in tasks
    ]
    first, second, evaluated = outputs(processes)
    metrics = r"global step 12: accuracy = [\d.]+, global_step = 12, loss = [\d.]+"
    assert re.search(metrics, first)
    assert re.search(metrics, evaluated)
    assert "Saving checkpoints" not in second + evaluated


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_listing_for_horovod(launcher: str, tmp_path: Path, python: str) -> None:
    """Rank 0 alone saves the last step."""
    if launcher == "mpirun" and not shutil.which("mpirun"):
        pytest.skip("mpirun is not installed (apt install openmpi-bin)")
    own = sys.executable if launcher == "mpirun" else python  # mpirun knows the processes that it has started
    words = [*LAUNCHERS[launcher], *command("horovod.txt", tmp_path / "model", own)]
    (said,) = outputs([started(words, tmp_path)])
    assert said.count("Saving checkpoints for 12 into") == 1


def test_keras_3_in_a_model_function_names_the_variable(tmp_path: Path) -> None:
    """Layers of Keras 3 cannot be created in a graph; the error names the variable to set."""
    process = started(command("multi_worker.txt", tmp_path / "model"), tmp_path, TF_USE_LEGACY_KERAS="0")
    said = process.communicate(timeout=DEADLINE_S)[0]
    assert process.returncode == 1
    assert "run the script with TF_USE_LEGACY_KERAS=1 and the package tf_keras" in said
