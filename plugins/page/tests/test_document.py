"""The page's HTML."""

import json
import re
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from support.lines import TEXTS

from ringtrain_job.logs.layout import AttemptFiles
from ringtrain_page.document import page
from ringtrain_page.log_window import LINE_CHARS
from ringtrain_page.summary import LOG_LINES, summarize_page

DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)


@given(text=TEXTS)
def test_any_text_comes_back_from_the_page_and_ends_no_element(text: str) -> None:
    """A log line may hold any characters, among them those that end a script."""
    run = {"log": {"lines": [text, "</script><script>alert(1)</script><!--"]}}
    html = page(run).encode(errors="surrogatepass").decode(errors="surrogatepass")
    (data,) = DATA.findall(html)
    assert json.loads(data) == run
    assert html.count("<script") == 2


def test_the_page_needs_nothing_beside_it() -> None:
    """No address, no other file, and a policy that allows none."""
    html = page({})
    assert re.findall(r'(?:src|href)="([^"]*)"', html) == ["data:,"]
    assert re.findall(r"https?://[^\"'\s]+", html) == ["http://www.w3.org/2000/svg"]
    assert "default-src 'none'" in html


def test_a_line_of_the_log_is_one_line_of_the_report(tmp_path: Path) -> None:
    """Characters that Python takes for the end of a line leave its rest with its rank."""
    files = AttemptFiles(tmp_path / "1")
    files.directory.mkdir()
    for text, lines in (("", []), ("[0] a\x0cb\u2028c\x85d\n[1] e\n", ["[0] a\x0cb\u2028c\x85d", "[1] e"])):
        files.job_log.write_text(text)
        assert summarize_page(files)["log"]["lines"] == lines


def test_long_lines_are_cut_in_a_report(tmp_path: Path) -> None:
    """As on a launcher's page: a report of lines of 64 KiB is not 300 MB, nor the memory of who writes it."""
    files = AttemptFiles(tmp_path / "1")
    files.directory.mkdir()
    with files.job_log.open("w") as log:
        for number in range(LOG_LINES // 10):
            log.write(f"[0] {number} {'x' * 60_000}\n")
    tracemalloc.start()
    try:
        lines = summarize_page(files)["log"]["lines"]
        assert tracemalloc.get_traced_memory()[1] < 10e6 < files.job_log.stat().st_size
    finally:
        tracemalloc.stop()
    assert [line.split()[1] for line in lines] == [str(number) for number in range(LOG_LINES // 10)]
    assert max(map(len, lines)) < LINE_CHARS + 100


def test_a_report_of_a_world_that_has_become_smaller(tmp_path: Path) -> None:
    """A rank that left an elastic job is neither behind nor who the others wait for, and has not succeeded."""
    files = AttemptFiles(tmp_path / "1")
    files.directory.mkdir()
    with files.metrics.open("w") as metrics:
        for step in range(40):
            for rank in range(3 if step < 20 else 2):
                waits = 0.0 if rank == 2 else 3.0 if step < 20 else 0.0
                report = {"rank": rank, "step": step, "time": 4.0 * step, "reductionWait": waits}
                metrics.write(json.dumps(report) + "\n")
    files.rank_log(2).touch()
    files.generations.write_text(json.dumps({"members": [{"slot": 0}, {"slot": 1}]}))
    run = summarize_page(files)
    assert [(rank["state"], rank["step"]) for rank in run["ranks"]] == [
        ("Ended", 39),
        ("Ended", 39),
        ("Waiting", None),
    ]
    assert (run["summary"]["step"], run["straggler"]) == (39, None)


@pytest.mark.parametrize(
    ("times", "reports", "ended", "span"),
    [
        pytest.param([10.0, 70.0], [], True, (10.0, 70.0), id="without-a-report"),
        pytest.param([10.0, 70.0], [3690.0, 30.0], True, (10.0, 70.0), id="clocks-apart"),
        pytest.param([10.0, 20.0], [30.0, 60.0], False, (10.0, 60.0), id="launcher-was-killed"),
        pytest.param([], [3690.0, 30.0], False, (30.0, 3690.0), id="no-events"),
        pytest.param([], [], False, (None, None), id="nothing"),
    ],
)
def test_when_an_attempt_began_and_ended(
    tmp_path: Path, times: list[float], reports: list[float], ended: bool, span: tuple[float | None, float | None]
) -> None:
    """As its launcher saw it, also where no rank has reported; by ranks' clocks where it did not see the end."""
    files = AttemptFiles(tmp_path / "1")
    files.directory.mkdir()
    events = [{"time": time, "kind": "Launcher", "text": ""} for time in times]
    files.events.write_text("".join(json.dumps(event) + "\n" for event in events))
    rows = [{"rank": rank, "step": 1, "time": time} for rank, time in enumerate(reports)]
    files.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if ended:
        files.outcome.write_text(json.dumps({"message": {"outcome": "Failed"}}))
    (attempt,) = summarize_page(files)["attempts"]
    assert (attempt["began"], attempt["ended"]) == span
