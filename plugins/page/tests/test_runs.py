"""Runs side by side: `ringtrain list` and `ringtrain compare` of real runs, the page in a real browser."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.browser import open_browser
from support.commands import completed
from support.gang import DEADLINE_S, until

pytestmark = pytest.mark.slow

PROGRAM = """
import math, pathlib, sys, time
import ringtrain as rt
lr = float(sys.argv[1])
rt.init()
rt.report_config({"lr": lr, "model": {"layers": 3}, "api_key": f"key of {lr}"})
for step in range(1, 21):
    rt.report(step, total_steps=20, loss=math.exp(-lr * step))
end = time.monotonic() + 60
while lr == 0.5 and time.monotonic() < end:
    time.sleep(0.05)
"""


def _ringtrain(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "ringtrain", *words]
    return completed(command, cwd=folder, timeout=DEADLINE_S)


def _run(folder: Path, name: str, lr: str) -> "subprocess.Popen[bytes]":
    command = [
        sys.executable,
        "-m",
        "ringtrain",
        "run",
        "-q",
        "-np",
        "1",
        "--name",
        name,
        sys.executable,
        "train.py",
        lr,
    ]
    return subprocess.Popen(command, cwd=folder, env={**os.environ, "TMPDIR": str(folder)}, start_new_session=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the runs `slow`, then `fast`, of one rank."""
    made = tmp_path_factory.mktemp("side-by-side")
    (made / "train.py").write_text(PROGRAM)
    for name, lr in (("slow", "0.01"), ("fast", "0.1")):
        assert _run(made, name, lr).wait(DEADLINE_S) == 0
    return made


def _listed(folder: Path) -> list[list[str]]:
    done = _ringtrain(folder, "list")
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.sampled
def test_runs_are_listed_the_newest_first(folder: Path) -> None:
    """Also one that goes on, and one whose launcher was killed."""
    run = _run(folder, "endless", "0.5")
    try:
        goes_on = ["endless", "Running", "1", "20/20", "4.54e-05"]
        until("it has reported", lambda: _listed(folder)[1][:5] == goes_on)
    finally:
        os.killpg(run.pid, signal.SIGKILL)
        run.wait(DEADLINE_S)
    until("nobody runs it", lambda: _listed(folder)[1][:2] == ["endless", "Killed"])
    head, _, fast, slow = _listed(folder)
    assert head == ["name", "state", "ranks", "steps", "loss", "took", "when"]
    assert fast[:5] == ["fast", "Succeeded", "1", "20/20", "0.1353"]
    assert slow[:5] == ["slow", "Succeeded", "1", "20/20", "0.8187"]


@pytest.mark.sampled
async def test_runs_are_compared(folder: Path, tmp_path: Path) -> None:
    """What differs is named, what is the same is not; the page has a line of each run, and needs nothing else."""
    done = _ringtrain(folder, "compare", "slow", "runs/local/fast", "--html", "both.html")
    assert done.returncode == 0, done.stderr
    rows = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if " " in line.strip())
    assert rows["lr"].split() == ["0.01", "0.1"]
    assert not {"model.layers", "api_key", "directory", "version"} & rows.keys()
    async with open_browser(tmp_path) as tab:
        for width, dark in ((390, True), (1280, False)):
            await tab.open(folder / "both.html", width=width, dark=dark)
            assert await tab.value("document.documentElement.scrollWidth") <= width
            lines = "[...document.querySelectorAll('figure .curve')].map(line => line.getAttribute('class'))"
            assert await tab.value(lines) == ["curve c0", "curve c1"]
            assert "lr\t0.01\t0.1" in await tab.value("document.getElementById('compare').innerText")
            shown = await tab.value("document.querySelector('figcaption output').innerText")
            assert shown == "step 20: slow 0.8187, fast 0.1353"
            assert tab.complaints == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("list", "."), "has no runs in it or below; give a directory of runs"),
        (("compare", "a", "--dir", "."), "1 run(s) to compare; expected 2 to 4"),
        (("compare", "a", "b", "--dir", "."), "a is neither a folder nor a run below ."),
    ],
    ids=["no-runs", "one-run", "no-such-run"],
)
def test_what_cannot_be_compared(words: tuple[str, ...], says: str, tmp_path: Path) -> None:
    """The error says what was expected."""
    done = _ringtrain(tmp_path, *words)
    assert done.returncode != 0
    assert says in done.stderr
