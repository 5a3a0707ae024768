"""`ringtrain report` of real runs, in a real browser."""

import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.browser import Tab, open_browser
from support.commands import completed
from support.gang import DEADLINE_S

import ringtrain as rt

pytestmark = pytest.mark.slow

TRAIN = """
import sys, ringtrain as rt
rt.init()
for step in range(1, 41):
    rt.report(step=step, total_steps=40, samples=8, loss=4 / step, unit="tokens", metrics={"accuracy": step / 40})
    if step == 20:
        print(f"rank {rt.rank()} is half way <b>&amp;", flush=True)
    if step == 30 and rt.rank() == 1 and "fail" in sys.argv:
        raise ValueError("bad sample </script><script>document.title = 'taken'</script>")
rt.barrier()
"""
# Rank 1 holds memory; both train until both have been looked at.
EATS = """
import json, pathlib, time, ringtrain as rt
rt.init()
rt.report_config({"lr": 0.1, "optimizer": {"name": "sgd"}, "api_key": "s3cr3t", "rank": rt.rank()})
held = bytearray(b"x") * (200 << 20 if rt.rank() == 1 else 1)
kept, step, end, seen = pathlib.Path("local/eats/1/machine.jsonl"), 0, time.monotonic() + 60, 0
while seen < 2 and time.monotonic() < end:
    step += 1
    rt.report(step, loss=1.0)
    time.sleep(0.02)
    rows = kept.read_text().splitlines() if kept.exists() else []
    ranks = [json.loads(row)["ranks"] for row in rows]
    seen = sum(len(one) == 2 and one["1"]["rss"] > 200 << 20 for one in ranks)
    seen = rt.allreduce(float(seen), op=rt.Min)
"""
# Every rank reduces in each step. Rank 1 computes longer, rank 2 waits for input, and updates take a while.
UNEVEN = """
import sys, time, ringtrain as rt
from ringtrain.optim import SGD, HostOptimizer
class Slow(SGD):
    def update(self, *args):
        time.sleep(0.005)
        super().update(*args)
def batches():
    for step in range(1, 31):
        time.sleep(0.01 if rt.rank() == 2 else 0)
        yield step
rt.init()
optimizer = HostOptimizer({"w": [0.0] * 600}, Slow(lr=0.1), clip_norm=1.0)
for step in rt.timeline.inputs(batches()):
    time.sleep(0.06 if rt.rank() == 1 else 0.002)
    optimizer.submit("w", [1.0] * 600)
    optimizer.step()
    rt.report(step, total_steps=30, samples=8)
"""


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A directory with the run `uneven`, of three ranks, and what it has printed."""
    folder = tmp_path_factory.mktemp("uneven")
    (folder / "train.py").write_text(UNEVEN)
    command = ["run", "-np", "3", "--runs", str(folder), "--name", "uneven", sys.executable, "train.py"]
    done = _ringtrain(*command, cwd=folder, RINGTRAIN_TIMELINE="trace.json")
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the runs `good` and `bad`, of three ranks."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "train.py").write_text(TRAIN)
    for name, words in (("good", []), ("bad", ["fail"])):
        command = ["run", "-np", "3", "--runs", str(folder), "--name", name, sys.executable, "train.py", *words]
        done = _ringtrain(*command, cwd=folder)
        assert (done.returncode != 0) == bool(words), done.stderr
    return folder


def _ringtrain(*words: str, cwd: Path, **env: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "ringtrain", *words]
    return completed(command, cwd=cwd, env={**os.environ, **env}, timeout=DEADLINE_S)


def _report(runs: Path, name: str) -> Path:
    done = _ringtrain("report", str(runs / "local" / name), cwd=runs)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


async def _text(tab: Tab, selector: str) -> str:
    return str(await tab.value(f"document.querySelector({selector!r}).innerText"))


async def test_a_page_shows_the_run(runs: Path, tmp_path: Path) -> None:
    """State, steps, speed, a curve of loss, speed and each metric, every rank, and the log; a narrow screen in
    the dark scrolls in one direction only; nothing is asked of a network, and the console stays empty."""
    async with open_browser(tmp_path) as tab:
        await tab.open(_report(runs, "good"), width=360, dark=True)
        assert await _text(tab, "#state") == "✓ Succeeded"
        assert "40/40" in await _text(tab, "#facts")
        start = await _text(tab, "#start")
        assert re.fullmatch(r"Start: joined [\d.]+ s, formed [\d.]+ s, first step [\d.]+ s", start), start
        assert await tab.value("[...document.querySelectorAll('#curves figcaption strong')].map(e => e.innerText)") == [
            "loss",
            "tokens/s",
            "accuracy",
        ]
        assert await tab.value("document.querySelectorAll('.ranks button').length") == 3
        assert await tab.value("document.documentElement.scrollWidth") <= 360
        assert await tab.value("getComputedStyle(document.body).backgroundColor") == "rgb(17, 21, 29)"
        assert await tab.value("performance.getEntriesByType('resource').length") == 0
        assert sorted((await _text(tab, "#lines")).splitlines()) == [
            f"[{rank}] rank {rank} is half way <b>&amp;" for rank in range(3)
        ]
        assert tab.complaints == []


async def test_a_page_names_the_first_failure(runs: Path, tmp_path: Path) -> None:
    """The rank, its exit code and its last lines, as text whatever they hold; the rank is marked."""
    async with open_browser(tmp_path) as tab:
        await tab.open(_report(runs, "bad"))
        assert await _text(tab, "#state") == "✗ Failed"
        failure = await _text(tab, "#failure")
        assert "rank 1 exited with 1" in failure
        assert "ValueError: bad sample </script><script>" in failure
        assert re.fullmatch(r"bad – [\d-]+ [\d:]+ UTC", await tab.value("document.title"))
        failed = "[...document.querySelectorAll('.ranks .Failed')].map(e => e.dataset.rank)"
        assert await tab.value(failed) == ["1"]
        assert tab.complaints == []


async def test_a_page_is_used_by_keyboard(runs: Path, tmp_path: Path) -> None:
    """Tab reaches curves and ranks; arrows walk a curve; Enter on a rank shows the rank's lines alone."""
    async with open_browser(tmp_path) as tab:
        await tab.open(_report(runs, "good"))
        while await tab.value("document.activeElement.tagName") != "svg":
            await tab.press("Tab")
        await tab.press("Home")
        assert await _text(tab, "figcaption output") == "step 1: 4"
        while await tab.value("document.activeElement.dataset.rank") != "2":
            await tab.press("Tab")
        await tab.press("Enter")
        assert await _text(tab, "#lines") == "[2] rank 2 is half way <b>&amp;"
        assert "1 of 3 lines" in await _text(tab, "#count")
        assert tab.complaints == []


async def test_what_ran_and_what_it_used_of_its_machine(tmp_path: Path) -> None:
    """Agents look while ranks run, and the launcher keeps it: on the page the worker's memory, and each
    rank's. Command, versions and configuration are there, without secrets, which are in no file of the run."""
    (tmp_path / "train.py").write_text(EATS)
    command = [
        "run",
        "-np",
        "2",
        "--runs",
        str(tmp_path),
        "--name",
        "eats",
        sys.executable,
        "train.py",
        *("--token", "s3cr3t"),
    ]
    done = _ringtrain(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = (tmp_path / "local/eats/1/machine.jsonl").read_text().splitlines()
    most = {rank: max(json.loads(row)["ranks"].get(rank, {"rss": 0})["rss"] for row in rows) for rank in "01"}
    assert 150 << 20 < most["1"] - most["0"] < 250 << 20
    reports = (tmp_path / "local/eats/1/metrics.jsonl").read_text().splitlines()
    assert not any("machine" in json.loads(report) for report in reports)
    kept = [path for path in (tmp_path / "local").rglob("*") if path.is_file() and b"s3cr3t" in path.read_bytes()]
    assert kept == []
    async with open_browser(tmp_path / "browser") as tab:
        await tab.open(_report(tmp_path, "eats"), width=390)
        assert await tab.value("document.querySelectorAll('#machine figure').length") >= 3
        assert re.search(r"[\d.]+ GiB of [\d.]+ GiB", await _text(tab, "#machine tbody"))
        rows = await tab.value("[...document.querySelectorAll('#about tr')].map(row => row.innerText.split('\\t'))")
        assert rows[0] == ["command", f"{sys.executable} train.py --token '***'"]
        assert [row[0] for row in rows[1:3]] == ["directory", "versions"]
        assert f"python {platform.python_version()}, ringtrain {rt.__version__}, numpy " in rows[2][1]
        assert rows[3:] == [["lr", "0.1"], ["optimizer.name", "sgd"], ["api_key", "***"], ["rank", "0"]]
        shown = await tab.value(
            "[...document.querySelectorAll('.ranks .use')].map(e => parseInt(e.innerText.split(', ')[1]))"
        )
        assert shown == [round(most[rank] / 2**20) for rank in "01"]
        assert await tab.value("document.documentElement.scrollWidth") <= 390
        assert tab.complaints == []


async def test_curves_that_people_read(tmp_path: Path) -> None:
    """By time, on a logarithmic axis and smoothed; round marks; where a loss is not finite is marked; what is
    pointed at in one curve is shown in all."""
    attempt = tmp_path / "local" / "diverges" / "1"
    attempt.mkdir(parents=True)
    (attempt / "job.log").write_text("[0] one line\n")
    steps = [{"step": step, "time": 1e9 + step / 4, "rank": 0, "epoch": step // 50} for step in range(1, 201)]
    for step, row in enumerate(steps, 1):
        row |= {"notFinite": {"loss": "NaN"}} if 120 <= step < 126 else {"loss": 1000 / step}
        row |= {"metrics": {"accuracy": step / 200}}
    (attempt / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in steps))
    of_one = "s => [...s.querySelectorAll('text')].map(t => t.innerHTML)"
    texts = f"[...document.querySelectorAll('figure svg')].map({of_one})"
    outputs = "[...document.querySelectorAll('figcaption output')].map(o => o.innerText)"

    async def choose(tab: Tab, name: str, change: str) -> None:
        await tab.value(
            f"(e => {{ e.{change}; e.dispatchEvent(new Event('input')); }})(document.getElementById('{name}'))"
        )

    async with open_browser(tmp_path / "browser") as tab:
        await tab.open(_report(tmp_path, "diverges"), width=1280)
        loss, accuracy = await tab.value(texts)
        assert await tab.value("document.getElementById('count').innerText") == "1 line"
        assert loss == ["0", "500", "1000", "50", "100", "150", "step 200", "not finite from step 120 to step 125"]
        assert accuracy == ["0", "0.5", "1", "50", "100", "150", "step 200"]
        await choose(tab, "log-axis", "checked = true")
        assert (await tab.value(texts))[0][:3] == ["10", "30", "100"]
        await choose(tab, "axis", "value = 's'")
        assert (await tab.value(texts))[0][-2:] == ["40 s", "not finite from 29.75 s to 31 s"]
        await choose(tab, "axis", "value = 'epoch'")
        assert "epoch 4" in (await tab.value(texts))[0]
        await choose(tab, "axis", "value = 'step'")
        while await tab.value("document.activeElement.tagName") != "svg":
            await tab.press("Tab")
        await tab.press("Home")
        assert await tab.value(outputs) == ["step 1: 1000", "step 1: 0.005"]
        await choose(tab, "smooth", "value = 0.9")
        assert await tab.value("document.querySelectorAll('.raw').length") == 2
        assert await tab.value("document.querySelector('figure').getBoundingClientRect().width") > 500
        assert tab.complaints == []


def test_a_directory_without_runs(tmp_path: Path) -> None:
    """The error names the directory and what it lacks; a place that can't be written is named, too."""
    missing = _ringtrain("report", str(tmp_path), cwd=tmp_path)
    assert (missing.returncode, "contains no run" in missing.stderr) == (1, True)


def test_a_directory_whose_name_is_no_utf8(tmp_path: Path) -> None:
    """Linux has such names; the report of a run there is written, as the launcher's own is."""
    attempt = tmp_path / os.fsdecode(b"caf\xe9") / "1"
    attempt.mkdir(parents=True)
    (attempt / "job.log").touch()
    done = _ringtrain("report", str(attempt), "--to", "report.html", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "report.html\n"), done.stderr


async def test_a_page_shows_where_the_time_goes_and_who_is_waited_for(uneven: tuple[Path, str], tmp_path: Path) -> None:
    """Ranks that train in step report together: the others' waits show which one computes longer. A bar for each
    rank, by keyboard, also on a narrow screen; the line of progress names the rank, too."""
    folder, printed = uneven
    parts: dict[int, dict[str, float]] = {rank: {} for rank in range(3)}
    for line in (folder / "local" / "uneven" / "1" / "metrics.jsonl").read_text().splitlines():
        report = json.loads(line)
        for name in ("inputWait", "reductionWait", "updateTime"):
            parts[report["rank"]][name] = parts[report["rank"]].get(name, 0.0) + report.get(name, 0.0)
    assert min(parts[0]["reductionWait"], parts[2]["reductionWait"]) > parts[1]["reductionWait"]
    assert parts[2]["inputWait"] >= 29 * 0.01 > max(parts[0]["inputWait"], parts[1]["inputWait"])
    assert min(part["updateTime"] for part in parts.values()) >= 29 * 0.005
    assert re.search(r"rank 1 holds others up \d+ %", printed)
    async with open_browser(tmp_path) as tab:
        await tab.open(_report(folder, "uneven"), width=360, dark=True)
        assert (await _text(tab, "#holds")).startswith("The others wait for rank 1: its own work of a step takes ")
        assert await tab.value("document.documentElement.scrollWidth") <= 360
        assert await _text(tab, ".ranks .slowest span:nth-child(2)") == "rank 1"
        width = "[...document.querySelectorAll('#steps li')].map(r => r.querySelector('.%s').offsetWidth)"
        compute, waits = await tab.value(width % "compute"), await tab.value(width % "reduction")
        assert compute[1] > max(compute[0], compute[2])
        assert waits[1] < min(waits[0], waits[2])
        while await tab.value("document.activeElement.tagName") != "LI":
            await tab.press("Tab")
        pattern = r"rank 0: a step of \S+ ms: input \S+ m?s, compute \S+ ms, update \S+ ms, reduction \S+ ms"
        assert re.fullmatch(pattern, await _text(tab, "#steps output"))
        assert re.search(r"speed\n[\d.]+ samples/s ± [\d.]+\n", await _text(tab, "#facts"))
        assert re.search(r"metrics.jsonl, .*run.json, timeline.json in .*uneven/1\.", await _text(tab, "#files"))
        assert await tab.value("document.links.length") == 0  # a report may be far from its files
        assert re.search(r"works \d+ %", await _text(tab, ".ranks .part"))
        assert tab.complaints == []


def test_the_timeline_is_kept_beside_the_logs(uneven: tuple[Path, str], tmp_path: Path) -> None:
    """Whole, for the run's own report and for `ringtrain timeline`; a report elsewhere links to nothing."""
    folder, _ = uneven
    kept = folder / "local" / "uneven" / "1" / "timeline.json"
    done = _ringtrain("timeline", str(kept), cwd=folder)
    assert done.stdout.count("steps of") == 3, done.stdout + done.stderr
    assert _ringtrain("report", str(kept.parent), "--to", str(tmp_path / "r.html"), cwd=folder).returncode == 0
    assert '"files":[]' in (tmp_path / "r.html").read_text()
