"""`ringtrain export --to tensorboard`: what TensorBoard's own reader finds in the event files of a run."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner
from support.needs import need

from ringtrain_job.cli.main import main

need("tensorboard")


@pytest.fixture(autouse=True)
def without_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the module that TensorBoard imports, so that it does not load TensorFlow, which is slow."""
    monkeypatch.setitem(sys.modules, "tensorboard.compat.notf", ModuleType("notf"))


def kept(folder: Path, *rows: dict[str, Any]) -> Path:
    """An attempt whose ranks have reported `rows`."""
    attempt = folder / "runs" / "local" / "digits" / "1"
    attempt.mkdir(parents=True)
    (attempt / "job.log").touch()
    lines = [json.dumps({"attempt": 1, "rank": 0, **row}) for row in rows]
    (attempt / "metrics.jsonl").write_text("\n".join(["no report", *lines, '{"rank": 0, "step": 9, "ti']))
    return attempt


def convert(folder: Path, *words: str) -> None:
    """Write the event files of the newest run, which the option names, or of the run `words`."""
    done = CliRunner().invoke(main, ["export", "--runs", str(folder / "runs"), "--to", "tensorboard", *words])
    assert done.exit_code == 0, done.output


def scalars(folder: Path) -> dict[str, list[tuple[float, int, float]]]:
    """Wall time, step and value of each scalar that TensorBoard finds."""
    from tensorboard.backend.event_processing import event_accumulator

    found = event_accumulator.EventAccumulator(str(folder))
    found.Reload()
    return {tag: [(e.wall_time, e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_every_report_is_an_event(tmp_path: Path) -> None:
    """Events contain loss, metrics, epoch and speed of each rank; null values and invalid reports are left out."""
    attempt = kept(
        tmp_path,
        {"step": 0, "time": 9.0, "startedFrom": ""},
        {"step": 1, "time": 10.0, "loss": 2.0, "samples": 8, "unit": "images", "metrics": {"accuracy": 0.5}},
        {"step": 1, "time": 10.5, "loss": 4.0, "rank": 1},
        {"step": 2, "time": 12.0, "loss": None, "samples": 8, "unit": "images", "epoch": 1},
        {"step": 1, "time": 10.5, "loss": 4.0, "rank": 64},
    )
    convert(tmp_path, "digits")
    assert scalars(attempt / "tensorboard" / "rank-0000") == {
        "loss": [(10.0, 1, 2.0)],
        "accuracy": [(10.0, 1, 0.5)],
        "images_per_second": [(12.0, 2, 4.0)],
        "epoch": [(12.0, 2, 1.0)],
    }
    assert scalars(attempt / "tensorboard" / "rank-0001") == {"loss": [(10.5, 1, 4.0)]}
    assert {path.name for path in (attempt / "tensorboard").iterdir()} == {"rank-0000", "rank-0001"}


def test_a_run_without_reports_is_said_to_have_none(tmp_path: Path) -> None:
    """Its folder of events is empty."""
    kept(tmp_path)
    done = CliRunner().invoke(main, ["export", "--runs", str(tmp_path / "runs"), "--to", "tensorboard"])
    assert (done.exit_code, "has no reports" in done.stderr) == (0, True)


def test_a_second_time_replaces_the_first(tmp_path: Path) -> None:
    """No event comes twice, and files of others stay."""
    attempt = kept(tmp_path, {"step": 1, "time": 10.0, "loss": 2.0})
    place = attempt / "tensorboard"
    (place / "rank-0000").mkdir(parents=True)
    (other := place / "rank-0000" / "events.out.tfevents.1.mine").touch()
    for _ in range(2):
        convert(tmp_path)
    assert scalars(place / "rank-0000") == {"loss": [(10.0, 1, 2.0)]}
    assert other.exists()


@pytest.mark.parametrize("words", [("tensorboard",), ("export", "--to", "tensorboard")], ids=["show", "export"])
def test_no_run_is_an_error(words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line says that there are no runs, and how to make one."""
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 1
    assert "`ringtrain run -np 2 python train.py` creates one" in done.output
