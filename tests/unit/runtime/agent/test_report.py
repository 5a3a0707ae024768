"""`ringtrain.report`: a line of JSON, or nothing; never in the way of training."""

import contextlib
import json
import os
import select
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ringtrain.errors import ConfigurationError
from ringtrain.report import report
from ringtrain.step_time import INPUT, REDUCTION, UPDATE, measured


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The read end of this rank's report pipe. Nothing is in it, nor times of other tests of this process."""
    read, write = os.pipe()
    monkeypatch.setenv("RINGTRAIN_REPORT_FD", str(write))
    measured.reset()
    yield read
    os.close(read)
    os.close(write)


def test_one_line_for_one_report(pipe: int) -> None:
    """The line contains all arguments under the contract's names, as plain numbers."""
    report(
        np.int64(12), total_steps=300, epoch=1, samples=128, loss=np.float32(0.5), unit="images",
        metrics={"accuracy": np.float64(0.97), "diverged": float("nan"), "beyond": 10**400},
    )  # fmt: skip
    line = os.read(pipe, 1 << 16)
    document = json.loads(line)
    assert line.endswith(b"\n")
    assert document.pop("time") > 1e9
    assert document == {
        "step": 12, "totalSteps": 300, "epoch": 1, "samples": 128, "loss": 0.5, "unit": "images",
        "metrics": {"accuracy": 0.97, "diverged": None, "beyond": None},
        "notFinite": {"diverged": "NaN", "beyond": "Infinity"},
    }  # fmt: skip


def test_any_number_by_name(pipe: int) -> None:
    """It is a metric, beside those of `metrics`; a loss of another name is one, too."""
    report(3, loss=1.0, grad_norm=np.float32(0.5), d_loss=float("nan"), metrics={"accuracy/val": 0.9})
    document = json.loads(os.read(pipe, 1 << 16))
    assert document["metrics"] == {"accuracy/val": 0.9, "grad_norm": 0.5, "d_loss": None}
    assert (document["loss"], document["notFinite"]) == (1.0, {"d_loss": "NaN"})


@pytest.mark.parametrize("name", ["total_step", "epochs", "sample", "steps", "metric", "units"])
def test_a_misspelled_argument_is_no_metric(name: str, pipe: int) -> None:
    """It would change the run's speed or time left, and nobody would see why."""
    with pytest.raises(ConfigurationError, match=f"report: there is no argument {name}=; write"):
        report(1, **{name: 5})


def test_outside_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report has no effect, even if the descriptor is another pipe."""
    monkeypatch.delenv("RINGTRAIN_REPORT_FD", raising=False)
    report(1)
    monkeypatch.setenv("RINGTRAIN_REPORT_FD", "987")
    report(1)
    with open(os.devnull, "wb") as other:
        monkeypatch.setenv("RINGTRAIN_REPORT_FD", str(other.fileno()))
        report(1)


def test_a_full_pipe_does_not_block(pipe: int) -> None:
    """Reports are dropped, and the next one that fits contains their number."""
    for step in range(5000):
        report(step)
    arrived = os.read(pipe, 1 << 20).count(b"\n")
    assert 0 < arrived < 5000
    report(5000)
    report(5001)
    first, second = (json.loads(line) for line in os.read(pipe, 1 << 16).splitlines())
    assert first["dropped"] == 5000 - arrived
    assert "dropped" not in second


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"step": -1}, "step=-1: expected an integer of at least 0"),
        ({"step": 1.5}, "step=1.5: expected an integer"),
        ({"step": "x"}, "step='x': expected an integer"),
        ({"step": 1, "total_steps": 0}, "total_steps=0: expected an integer of at least 1"),
        ({"step": 1, "samples": -2}, "samples=-2: expected a number of at least 0"),
        ({"step": 1, "loss": "low"}, "loss='low': expected a number"),
        ({"step": float("inf")}, "step=inf: expected an integer"),
        ({"step": 2**63}, "step is above 9223372036854775807"),
        ({"step": 1, "unit": ""}, "unit='': expected a word"),
        ({"step": 1, "metrics": {"accuracy": None}}, "accuracy=None: expected a number"),
        ({"step": 1, "metrics": {f"m{n}": 1 for n in range(500)}}, "fewer metrics"),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, Any], message: str) -> None:
    """The error is raised with and without a job, so it appears on the first machine on which the script runs."""
    with pytest.raises(ConfigurationError) as wrong:
        report(**arguments)
    assert message in str(wrong.value)


def test_parts_of_a_step_are_in_the_next_report_that_is_written(pipe: int) -> None:
    """Each measured part appears once; if the full pipe drops a report, the next one contains its parts."""
    report(0)
    with INPUT:
        pass
    report(1)
    with REDUCTION:
        pass
    with UPDATE:
        pass
    report(2)
    lines = [json.loads(line) for line in os.read(pipe, 1 << 16).splitlines()]
    parts = [{name for name in ("inputWait", "reductionWait", "updateTime") if name in line} for line in lines]
    assert parts == [set(), {"inputWait"}, {"inputWait", "reductionWait", "updateTime"}]
    assert lines[2]["inputWait"] == 0.0 < lines[2]["reductionWait"]
    fd = int(os.environ["RINGTRAIN_REPORT_FD"])
    os.set_blocking(fd, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(fd, b"x" * select.PIPE_BUF)
    with INPUT:
        report(3)
        while len(os.read(pipe, 1 << 20)) == 1 << 20:
            pass
        before = measured.take()
        measured.give_back(before)
        report(4)
    assert json.loads(os.read(pipe, 1 << 16))["inputWait"] > before["inputWait"] > 0.0


@pytest.mark.parametrize(("loss", "word"), [(float("nan"), "NaN"), (float("-inf"), "-Infinity"), (10**400, "Infinity")])
def test_a_loss_that_is_not_finite(pipe: int, loss: float, word: str) -> None:
    """The report names the value."""
    report(3, loss=loss)
    document = json.loads(os.read(pipe, 1 << 16))
    assert document["notFinite"] == {"loss": word}
    assert "loss" not in document
