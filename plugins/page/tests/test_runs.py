"""Runs side by side: `ringtrain list` and `ringtrain compare` of real runs, the page in a real browser."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.browser import Tab, open_browser
from support.commands import completed
from support.gang import DEADLINE_S, until

from ringtrain_page.comparison import MOST_COMPARED
from ringtrain_page.document import page

pytestmark = pytest.mark.slow

PROGRAM = """
import math, pathlib, sys, time
import ringtrain as rt
lr = float(sys.argv[1])
rt.init()
rt.report_config({"lr": lr, "model": {"layers": 3}, "api_key": f"key of {lr}"})
for step in range(1, 21):
    rt.report(step, total_steps=20, samples=4, loss=math.exp(-lr * step))
    time.sleep(0.01)
    if lr == 0.3 and step == 10 + (rt.rank() == 0):
        if rt.rank() == 0:
            raise ValueError("bad sample")
        time.sleep(60)
end = time.monotonic() + 60
while lr == 0.5 and time.monotonic() < end:
    time.sleep(0.05)
"""

LABELS = {f"{label:<7}" for label in ("state", "steps", "took", "run", "logs")}


def _ringtrain(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "ringtrain", *words]
    return completed(command, cwd=folder, timeout=DEADLINE_S)


def _run(folder: Path, name: str, lr: str, ranks: int = 1) -> "subprocess.Popen[str]":
    words = ["run", "-np", f"{ranks}", "--name", name, sys.executable, "train.py", lr]
    return subprocess.Popen(
        [sys.executable, "-m", "ringtrain", *words],
        cwd=folder, env={**os.environ, "TMPDIR": str(folder)}, start_new_session=True, text=True,
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.fixture(scope="module")
def summaries() -> dict[str, dict[str, str]]:
    """By run, the rows of the summary that its terminal got."""
    return {}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, summaries: dict[str, dict[str, str]]) -> Path:
    """With the runs `slow`, then `fast`, of one rank, another one of that name, and `fails`, whose ranks end at
    different steps."""
    made = tmp_path_factory.mktemp("side-by-side")
    (made / "train.py").write_text(PROGRAM)
    for name, lr, ranks in (("slow", "0.01", 1), ("fast", "0.1", 1), ("fast", "0.2", 1), ("fails", "0.3", 2)):
        run = _run(made, name, lr, ranks)
        _, said = run.communicate(timeout=DEADLINE_S)
        assert (run.returncode != 0) == (name == "fails"), said
        rows = dict(line.split(maxsplit=1) for line in said.splitlines() if line[:7] in LABELS)
        summaries[rows["run"]] = rows
    return made


def _listed(folder: Path) -> list[list[str]]:
    done = _ringtrain(folder, "list")
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


def test_runs_are_listed_the_newest_first(folder: Path) -> None:
    """Also one that goes on, and one whose launcher was killed. A name that was taken gets a number."""
    run = _run(folder, "endless", "0.5")
    try:
        goes_on = ["endless", "Running", "1", "20/20", "4.54e-05"]
        until("it has reported", lambda: _listed(folder)[1][:5] == goes_on)
    finally:
        os.killpg(run.pid, signal.SIGKILL)
        run.communicate(timeout=DEADLINE_S)
    until("nobody runs it", lambda: _listed(folder)[1][:2] == ["endless", "Killed"])
    head, killed, fails, again, fast, slow = _listed(folder)
    shutil.rmtree(folder / "runs" / "local" / "endless")
    assert head == ["name", "state", "ranks", "steps", "loss", "took", "began"]
    assert killed[2:5] == goes_on[2:]
    assert fails[:3] == ["fails", "Failed", "2"]
    assert again[:2] == ["fast-2", "Succeeded"]
    assert fast[:5] == ["fast", "Succeeded", "1", "20/20", "0.1353"]
    assert slow[:5] == ["slow", "Succeeded", "1", "20/20", "0.8187"]


@pytest.mark.parametrize("name", ["fast", "fails"])
async def test_a_run_has_one_truth(
    name: str, folder: Path, summaries: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    """The summary on the terminal, the list, its JSON, the comparison, and the page have the same state, steps, loss,
    speed and duration; the page's bar begins and ends when the run did."""
    (data,) = [one for one in json.loads(_ringtrain(folder, "list", "-o", "json").stdout) if one["name"] == name]
    shown, summary = data["shown"], summaries[name]
    steps = ", ".join([shown["steps"], f"loss {shown['loss']}", shown["speed"]])
    assert (summary["state"], summary["steps"], summary["took"]) == (shown["state"], steps, shown["took"])
    assert summary["logs"] == str(folder / "runs" / "local" / name / "1")
    (row,) = [row for row in _listed(folder) if row[0] == name]
    assert row[1:7] == [*(shown[key] for key in ("state", "ranks", "steps", "loss")), *shown["took"].split()]
    compared = _ringtrain(folder, "compare", name, "slow").stdout.splitlines()[1].split()
    assert compared[1:9] == " ".join(shown[key] for key in shown).split()
    done = _ringtrain(folder, "report", name, "--to", str(tmp_path / "run.html"))
    assert done.returncode == 0, done.stderr
    async with open_browser(tmp_path / "browser") as tab:
        await tab.open(tmp_path / "run.html")
        facts = "[...document.querySelectorAll('#facts div')].map(row => [...row.children].map(e => e.innerText))"
        found = dict(await tab.value(facts))
        assert (found["steps"], found["took"], found["ranks"]) == (shown["steps"], shown["took"], shown["ranks"])
        assert (found["loss"], found["speed"].partition(" ±")[0]) == (shown["loss"], shown["speed"])
        assert await tab.value("document.querySelector('#state').innerText.slice(2)") == shown["state"]
        (span,) = await tab.value("run.attempts.map(one => [one.began, one.ended])")
        assert span == [data["began"], data["ended"]]


def test_every_command_takes_a_name(folder: Path) -> None:
    """Or a folder, or none: the newest run. `--runs` names another folder."""
    assert "bad sample" in _ringtrain(folder, "logs", "fails").stdout
    assert _ringtrain(folder, "logs").stdout == _ringtrain(folder, "logs", "fails").stdout
    reports = _ringtrain(folder.parent, "logs", "fast-2", "--reports", "--runs", str(folder / "runs")).stdout
    assert reports == (folder / "runs/local/fast-2/1/metrics.jsonl").read_text()
    for words in (["report"], ["export", "--to", "tensorboard"], ["logs", "--tail", "1"]):
        for named in ("slow", "runs/local/slow", "runs/local/slow/1"):
            done = _ringtrain(folder, *words, named)
            assert (done.returncode, done.stderr) == (0, ""), (words, named)
    assert (folder / "runs/local/slow/1/report.html").exists()


def test_tables_fit_a_terminal(folder: Path) -> None:
    """Of 80 columns; states are coloured there, unless NO_COLOR is set."""
    for words in ("list", "compare slow fast fast-2 fails"):
        for colour, more in ((True, {}), (False, {"NO_COLOR": "1"})):
            command = f"stty cols 80; {sys.executable} -m ringtrain {words}"
            done = completed(["script", "-qec", command, "/dev/null"], cwd=folder, env={**os.environ, **more})
            assert done.returncode == 0
            assert ("\x1b[32mSucceeded" in done.stdout, "\x1b" in done.stdout) == (colour, colour)
            lines = re.sub("\x1b\\[[0-9;]*m", "", done.stdout).splitlines()
            assert max(map(len, lines)) <= 80, lines
    assert "\x1b" not in _ringtrain(folder, "list").stdout


def test_a_long_name_leaves_room_for_the_other_columns(tmp_path: Path) -> None:
    """It is shortened in the middle on a terminal, and nowhere else."""
    for name in ("digits-of-a-convolution-with-a-long-name-3f2a", "t"):
        attempt = tmp_path / "runs/local" / name / "1"
        attempt.mkdir(parents=True)
        (attempt / "job.log").touch()
        progress = {"step": 300, "totalSteps": 300, "loss": 0.4213}
        message = {"outcome": "Succeeded", "worldSize": 2, "progress": progress}
        (attempt / ".outcome.json").write_text(json.dumps({"message": message}))
        events = [{"time": 1.7e9 + at, "kind": "Launcher", "text": ""} for at in (0, 12)]
        (attempt / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    command = f"stty cols 80; {sys.executable} -m ringtrain list"
    done = completed(["script", "-qec", command, "/dev/null"], cwd=tmp_path, env={**os.environ, "NO_COLOR": "1"})
    head, shown, _ = done.stdout.splitlines()
    assert head.split() == ["name", "state", "ranks", "steps", "loss", "took", "began"]
    assert re.match(r"digits-\S*…\S*-3f2a  Succeeded  2      300/300  0.4213  12 s  2023-11-14 22:13 UTC$", shown)
    assert len(shown) <= 80
    assert "digits-of-a-convolution-with-a-long-name-3f2a  " in _ringtrain(tmp_path, "list").stdout
    assert _ringtrain(tmp_path, "list", "-o", "name").stdout.startswith(
        "digits-of-a-convolution-with-a-long-name-3f2a\n"
    )
    command = f"stty cols 80; {sys.executable} -m ringtrain compare digits-of-a-convolution-with-a-long-name-3f2a t"
    done = completed(["script", "-qec", command, "/dev/null"], cwd=tmp_path, env={**os.environ, "NO_COLOR": "1"})
    head, shown, *_ = done.stdout.splitlines()
    assert head.split() == ["name", "state", "ranks", "steps", "loss", "speed"]
    assert re.match(r"digits-\S*…\S*-3f2a  Succeeded  2      300/300  0.4213$", shown)


def test_damaged_outcomes_are_named(tmp_path: Path) -> None:
    """Such a run is not known to have been killed."""
    for name, outcome in (("whole", json.dumps({"message": {"outcome": "Succeeded"}})), ("cut", '{"message": {"out')):
        attempt = tmp_path / "runs/local" / name / "1"
        attempt.mkdir(parents=True)
        (attempt / "job.log").touch()
        (attempt / ".outcome.json").write_text(outcome)
    assert ".outcome.json is damaged in cut, so" in _ringtrain(tmp_path, "list").stderr


async def test_runs_are_compared(folder: Path, tmp_path: Path) -> None:
    """Settings that differ are columns. The page needs no other file, has a curve with the last step of each run, and
    is not cut on a narrow screen."""
    done = _ringtrain(folder, "compare", "slow", "runs/local/fast", "fails", "--html", "all.html")
    assert done.returncode == 0, done.stderr
    head, *rows = [line.split() for line in done.stdout.splitlines()[:-1]]
    assert head == ["name", "state", "ranks", "steps", "loss", "speed", "took", "lr", "command"]
    assert [row[-2:] for row in rows] == [["0.01", "0.01"], ["0.1", "0.1"], ["0.3", "0.3"]]
    async with open_browser(tmp_path) as tab:
        last = rows[2][head.index("steps")].partition("/")[0]  # not that of the rank that went one step further
        for width, dark in ((390, True), (1280, False)):
            await tab.open(folder / "all.html", width=width, dark=dark)
            await _nothing_is_cut(tab, width)
            colours = "[...document.querySelectorAll('figure:first-child .curve')].map(line => line.style.stroke)"
            assert len(set(await tab.value(colours))) == 3
            cells = "[...document.querySelectorAll('#compare td')].map(e => [e.dataset.name, e.innerText])"
            assert [value for name, value in await tab.value(cells) if name == "lr"] == ["0.01", "0.1", "0.3"]
            shown = await tab.value("document.querySelector('figcaption output').innerText")
            assert re.fullmatch(rf"slow 0.8187 \(step 20\), fast 0.1353 \(step 20\), fails \S+ \(step {last}\)", shown)
            assert tab.complaints == []


async def _nothing_is_cut(tab: Tab, width: int) -> None:
    """No table, title or cell is wider than its place."""
    assert await tab.value("document.documentElement.scrollWidth") <= width
    wide = (
        "[...document.querySelectorAll('.scroll, h1, figcaption, td')].filter(e => e.scrollWidth > e.clientWidth + 1)"
    )
    assert await tab.value(f"{wide}.map(e => e.outerHTML.slice(0, 80))") == []


async def test_many_runs_are_compared(tmp_path: Path) -> None:
    """Up to twelve, each with a colour; a title of one word stays on its line beside a long list of values."""
    names = [f"run-{number}" for number in range(MOST_COMPARED)]
    names[0] = "digits-of-a-convolution-with-a-long-name-and-many-options-3f2a"
    series = [{"name": name, "points": [[0, 1.0], [10 + n, 2.0]], "bad": []} for n, name in enumerate(names)]
    series[3]["bad"], series[5]["bad"] = [[4, 1.0]], [[17, 1.0], [18, 1.0]]
    found = {
        "runs": names, "columns": ["state", "lr"], "rows": [["Succeeded", "0.1"]] * len(names), "differ": True,
        "curves": [{"name": "validation/accuracy", "of": "step", "series": series}],
    }  # fmt: skip
    (tmp_path / "page.html").write_text(page({"compare": found}))
    async with open_browser(tmp_path / "browser") as tab:
        for width in (390, 1300):
            await tab.open(tmp_path / "page.html", width=width)
            await _nothing_is_cut(tab, width)
            name = f"document.querySelector('#compare [title=\"{names[0]}\"]')"
            assert width == 390 or await tab.value(f"{name}.offsetHeight") < 30  # one line
            assert await tab.value("document.querySelector('figcaption strong').getClientRects().length") == 1
            assert await tab.value("document.querySelector('figcaption strong').offsetHeight") < 30
            strokes = "[...document.querySelectorAll('.curve')].map(line => getComputedStyle(line).stroke)"
            assert len(set(await tab.value(strokes))) == MOST_COMPARED
            marks = await tab.value(
                "[...document.querySelectorAll('text.bad')].map(e => [e.innerHTML, e.getAttribute('y')])"
            )
            assert marks == [["run-3 not finite at step 4", "21"], ["run-5 not finite from step 17", "33"]]
            assert "run-11 2 (step 21)" in await tab.value("document.querySelector('figcaption output').innerText")


@pytest.mark.parametrize(
    ("points", "says"),
    [
        ([[0, 1.0], [2, 2.0]], "step 2: fine 2, lost not finite from step 1"),
        ([], "fine not finite from step 1, lost not finite from step 1"),
    ],
    ids=["one-of-two", "all"],
)
async def test_a_run_without_a_finite_value_is_named(points: list[list[float]], says: str, tmp_path: Path) -> None:
    """In the legend of the curve, which has no line for it."""
    bad = [[1, 1.0], [2, 1.0]]
    series = [
        {"name": "fine", "points": points, "bad": [] if points else bad},
        {"name": "lost", "points": [], "bad": bad},
    ]
    found = {
        "runs": ["fine", "lost"], "columns": ["state"], "rows": [["Succeeded"]] * 2, "differ": True,
        "curves": [{"name": "loss", "of": "step", "series": series}],
    }  # fmt: skip
    (tmp_path / "page.html").write_text(page({"compare": found}))
    async with open_browser(tmp_path / "browser") as tab:
        await tab.open(tmp_path / "page.html")
        assert await tab.value("document.querySelector('figcaption output').innerText") == says
        assert tab.complaints == []


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("list",), 0, "runs does not exist, so there are no runs; `ringtrain run -np 2 python train.py` creates one"),
        (("list", "--runs", "."), 0, ". has no runs; `ringtrain run --runs . -np 2 python train.py` creates one"),
        (("report",), 1, "`ringtrain run -np 2 python train.py` creates one"),
        (("compare", "a"), 2, f"cannot compare 1 run; expected 2 to {MOST_COMPARED}"),
        (("compare", "a", "b"), 1, "runs does not exist, so there are no runs"),
    ],
    ids=["no-folder", "no-runs", "no-run-to-report", "one-run", "no-such-run"],
)
def test_without_runs(words: tuple[str, ...], code: int, says: str, tmp_path: Path) -> None:
    """The line says that there are none, and how to make one; a list of none is no failure."""
    done = _ringtrain(tmp_path, *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr


def test_a_job_without_an_attempt_is_named(tmp_path: Path) -> None:
    """`dtj list --local` has it, and so a line tells where it is; it has no numbers for a row of the table."""
    (tmp_path / "runs" / "refused-20260101-000000").mkdir(parents=True)
    (tmp_path / "runs" / "refused-20260101-000000" / "job.json").write_text("{}")
    done = _ringtrain(tmp_path, "list")
    line = "no attempt has started in refused-20260101-000000; see dtj list --runs runs\n"
    assert (done.returncode, done.stdout, line in done.stderr) == (0, "", True), done.stderr
