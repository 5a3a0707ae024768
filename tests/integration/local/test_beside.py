"""Pods beside the ranks on this machine: real processes, driven by the same plan."""

import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from support.commands import completed
from support.local import Local, Start, until

ROOT = Path(__file__).parents[3]

# Writes a last checkpoint a moment before it ends: whoever looks for it at once may miss it.
TRAIN = """
import os, pathlib
folder = pathlib.Path(os.environ["RINGTRAIN_CHECKPOINT_DIR"])
folder.mkdir(parents=True, exist_ok=True)
(folder / f"last-{os.environ['RANK']}").touch()
"""
EVALUATE = """
import os, pathlib, time
import ringtrain
ringtrain.init()
assert ringtrain.size() == 1, ringtrain.size()
last = pathlib.Path(os.environ["RINGTRAIN_CHECKPOINT_DIR"]) / "last-1"
deadline = time.monotonic() + 200
while not last.exists() and time.monotonic() < deadline:
    time.sleep(0.05)
print("evaluated", last.name, os.environ["RINGTRAIN_ROLE"])
raise SystemExit(CODE)
"""


def evaluator(code: int) -> dict[str, object]:
    """An evaluator that ends with this code."""
    command = ["python", "-c", EVALUATE.replace("CODE", str(code))]
    return {"timeoutSeconds": 250, "template": {"spec": {"containers": [{"command": command}]}}}


def test_an_evaluator_sees_the_last_checkpoint(start: Start) -> None:
    """It is in a world of one, `dtj local` waits for it, and its output is in its pod's file."""
    claim = {"persistentVolumeClaim": {"claimName": "checkpoints"}}
    local = start("python", "-c", TRAIN, evaluator=evaluator(0), checkpoint=claim)
    local.finish(0)
    (log,) = local.directory.glob("runs/*/pods/*-evaluator.log")
    assert log.read_text() == "evaluated last-1 evaluator\n"


def test_one_that_is_late_is_asked_to_end(start: Start) -> None:
    """After timeoutSeconds; the job has succeeded nevertheless, and nothing is left."""
    template = {"spec": {"containers": [{"command": ["sleep", "1000"]}]}}
    local = start("python", "-c", "pass", evaluator={"timeoutSeconds": 1, "template": template})
    assert "Succeeded" in local.finish(0)


SERVED = [str(ROOT / "examples/digits/train_served.py"), "--epochs", "8"]
PLAIN = [str(ROOT / "examples/digits/train.py"), "--epochs", "8"]


def data_worker(local: Local, index: int) -> psutil.Process | None:
    """The first process of a data worker's pod."""
    for process in local.processes():
        with suppress(psutil.Error):
            if "data-worker" in process.cmdline() and process.environ()["RINGTRAIN_DATA_INDEX"] == str(index):
                return process
    return None


def served(local: Local, index: int) -> int:
    """Return how many processes of a data worker's pod have logged that they serve."""
    logs = local.directory.glob(f"runs/*/pods/t-data-{index}.log")
    return sum(log.read_text().count(" and listens on port") for log in logs)


def last_line(text: str) -> list[str]:
    """The line with the weights' digest, without its rank."""
    return [line.split("] ")[-1] for line in text.splitlines() if "weights sha256" in line]


def test_data_workers_are_replaced_and_outlive_attempts(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is killed, then a rank: the weights are those of a training without data workers. The killed one was
    made anew, and the other one has been one process all the time."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "examples/digits"))
    local = start("python", *SERVED, dataWorkers={"replicas": 2}, runPolicy={"backoffLimit": 3})
    first = [until(lambda index=index: data_worker(local, index)) for index in (0, 1)]
    until(lambda: served(local, 0) == 1)
    rank = until(lambda: local.rank(1))
    first[0].kill()
    until(lambda: (other := data_worker(local, 0)) is not None and other.pid != first[0].pid)
    rank.kill()
    local.finish(0)
    assert [served(local, index) for index in (0, 1)] == [2, 1]
    command = [str(Path(sys.executable).parent / "ringtrain"), "run", "-np", "2", sys.executable, *PLAIN]
    alone = completed(command, check=True, cwd=tmp_path)
    assert last_line(local.log(2)) == last_line(alone.stdout) != []
