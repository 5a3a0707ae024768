"""Progress that scripts print, read by a real agent: tqdm's own bars, lines shaped as the MPI benchmark's."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.browser import open_browser
from support.commands import completed
from support.gang import DEADLINE_S
from support.needs import need

from ringtrain_job.logs.layout import AttemptFiles

# tqdm's bars on stderr, and each byte of them in a file, too.
BARS = """
import os, sys, time
from tqdm import tqdm
class Both:
    def __init__(self):
        self.kept = open(f"written-{os.environ['RANK']}", "wb", buffering=0)
    def write(self, text):
        self.kept.write(text.encode()), sys.stderr.buffer.write(text.encode())
    def flush(self):
        sys.stderr.flush()
both = Both()
for epoch in range(3):
    bar = tqdm(range(40), desc=f"Epoch {epoch + 1}/3", file=both, mininterval=0.01)
    for step in bar:
        time.sleep(0.005)
        bar.set_postfix(loss=1 / (40 * epoch + step + 1))
    for step in tqdm(range(5), file=both, mininterval=0):
        pass
"""
# The shape of tf_cnn_benchmarks' output under mpirun: each rank prints.
BENCHMARK = """
import time
print("Step\\tImg/sec\\ttotal_loss", flush=True)
for step in (1, *range(10, 101, 10)):
    time.sleep(0.02)
    print(f"{step}\\timages/sec: 57.5 +/- 0.1 (jitter = 0.3)\\t{8 - step / 50:.3f}", flush=True)
print("-" * 64)
print("total images/sec: 115.00")
"""
WINS = """
import time
import ringtrain as rt
rt.init()
for step in range(1, 31):
    print(f" {step}%|#  | {step}/1000 [00:10<00:12, 45.2it/s, loss=77]", flush=True)
rt.broadcast_object(None, 0)
for step in range(1, 6):
    print(f" {step}%|#  | {100 + step}/1000 [00:10<00:12, 45.2it/s, loss=77]", flush=True)
    rt.report(step, total_steps=5, samples=3, loss=1 / step)
"""


def _run(folder: Path, program: str, *words: str, ranks: int = 2, code: int = 0) -> str:
    """Run `program` with `ringtrain run` and return the stderr, which has the run's summary."""
    (folder / "train.py").write_text(program)
    asked = ["run", "-np", str(ranks), "--name", "t", *words, sys.executable, "train.py"]
    done = completed([sys.executable, "-m", "ringtrain", *asked], cwd=folder, timeout=DEADLINE_S)
    assert done.returncode == code, done.stderr
    return done.stderr


def _listed(folder: Path) -> dict[str, Any]:
    words = [sys.executable, "-m", "ringtrain", "list", "-o", "json"]
    done = completed(words, cwd=folder, timeout=DEADLINE_S, check=True)
    (found,) = json.loads(done.stdout)
    return dict(found)


async def test_the_bars_of_tqdm(tmp_path: Path) -> None:
    """Steps go through all epochs, in the summary, the list and the page; the log has what was written, to the
    byte; the bars within the epochs are none of training."""
    need("tqdm")
    assert "steps  120/120, loss 0.008" in _run(tmp_path, BARS)
    found = _listed(tmp_path)
    assert (found["step"], found["totalSteps"], found["unit"]) == (120, 120, "it")
    assert 20 < found["speed"] < 200
    files = AttemptFiles.of(tmp_path / "runs", "local", "t", 1)
    for rank in (0, 1):
        assert files.rank_log(rank).read_bytes() == (tmp_path / f"written-{rank}").read_bytes()
    async with open_browser(tmp_path / "browser") as tab:
        words = [sys.executable, "-m", "ringtrain", "report", "runs"]
        subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, timeout=DEADLINE_S)
        await tab.open(files.report)
        assert "120/120" in await tab.value("document.getElementById('facts').innerText")
        curves = await tab.value("[...document.querySelectorAll('#curves strong')].map(e => e.innerText)")
        assert curves == ["loss", "it/s"]
        assert tab.complaints == []


def test_the_lines_of_the_mpi_benchmark(tmp_path: Path) -> None:
    """Each rank's speed, times the ranks, is the run's; nothing is printed beside the ranks' own lines."""
    said = _run(tmp_path, BENCHMARK)
    assert "steps  100, loss 6, 115.0 images/s\n" in said
    assert _listed(tmp_path)["speed"] == pytest.approx(115.0)
    rows = [json.loads(row) for row in (tmp_path / "runs/local/t/1/metrics.jsonl").read_text().splitlines()]
    assert {row["rank"] for row in rows} <= {0, 1}
    assert [row for row in rows if row["rank"] == 0][-1]["metrics"] == {"total images/sec": 115.0}


def test_only_another_rank_prints(tmp_path: Path) -> None:
    """Then that one speaks for the run."""
    one = f"import os\nif os.environ['RANK'] == '1':\n    exec({BENCHMARK!r})"
    assert "steps  100, loss 6, 115.0 images/s\n" in _run(tmp_path, one)


def test_what_ranks_report_wins(tmp_path: Path) -> None:
    """From the first report on, also over what was read before it, in the summary and in the page."""
    assert re.search(r"steps  5/5, loss 0\.2, [\d.]+ samples/s\n", _run(tmp_path, WINS))
    words = [sys.executable, "-m", "ringtrain", "report", "runs", "--to", "page.html"]
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, timeout=DEADLINE_S)
    page = (tmp_path / "page.html").read_text()
    data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    (loss,) = [curve["points"] for curve in data["curves"] if curve["name"] == "loss"]
    assert loss == [[step, pytest.approx(1 / step)] for step in range(1, 6)]


def test_a_users_rule(tmp_path: Path) -> None:
    """It says what a line reports, and a loss in it may end the run."""
    program = "print('[7] done: mse 0.25')\nprint('[8] done: mse nan')"
    rule = r"^\[(?P<step>\d+)\] done: mse (?P<loss>\S+)$"
    assert "steps  8, loss NaN since step 8 (rank 0)" in _run(tmp_path, program, "--metrics", rule, ranks=1)
    said = _run(tmp_path, program, "--metrics", rule, "--fail-on-nan", "--name", "u", ranks=1, code=65)
    assert "First failure: rank 0, NotFinite" in said


def test_no_line_is_read(tmp_path: Path) -> None:
    """With `none`, as if nothing were known of lines."""
    assert "steps" not in _run(tmp_path, BENCHMARK, "--metrics", "none")
    assert not (tmp_path / "runs/local/t/1/metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("rule", "says"),
    [("step (", "is no valid regular expression"), ("step", "has no named group"), ("", "has no named group")],
    ids=["open", "unnamed", "empty"],
)
def test_a_rule_that_is_none_is_refused(rule: str, says: str, tmp_path: Path) -> None:
    """Before anything is started, by the option's name."""
    said = _run(tmp_path, "", "--metrics", rule, code=2)
    assert f"Error: --metrics {rule!r} {says}" in said
    assert not (tmp_path / "runs").exists()
