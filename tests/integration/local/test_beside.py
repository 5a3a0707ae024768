"""Pods beside the ranks on this machine: real processes, driven by the same plan."""

from __future__ import annotations

from support.local import Start

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
