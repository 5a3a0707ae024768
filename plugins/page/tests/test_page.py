"""The page's script in a real browser, with data as the launcher sends it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.browser import Tab, open_browser

from ringtrain_page.document import page

pytestmark = pytest.mark.slow

SHOWN = {"state": "Running", "ranks": "", "steps": "7", "loss": "", "speed": "", "took": ""}
SUMMARY: dict[str, Any] = {
    "attempt": 1, "state": "Running", "directory": "/logs", "began": None, "ended": None, "step": 7,
    "totalSteps": None, "failure": None, "progress": {}, "shown": SHOWN,
}  # fmt: skip
RUN: dict[str, Any] = {
    "job": "digits", "attempt": 1, "attempts": [], "summary": SUMMARY, "curves": [], "ranks": [],
    "log": {"lines": [], "before": 0},
}  # fmt: skip


def _summary(shown: dict[str, str], **more: Any) -> dict[str, Any]:
    """The summary of `RUN` with what else is known."""
    return {**SUMMARY, **more, "shown": {**SHOWN, **shown}}


@asynccontextmanager
async def _shown(tmp_path: Path, **more: Any) -> AsyncIterator[Tab]:
    """The page of `RUN` with what else is known."""
    (tmp_path / "page.html").write_text(page({**RUN, **more}))
    async with open_browser(tmp_path / "browser") as tab:
        await tab.open(tmp_path / "page.html")
        yield tab
        assert tab.complaints == []


def _ranks(count: int, world: int) -> dict[str, Any]:
    """Of a job with so many ranks, of which the first `world` train."""
    ranks = [{"rank": n, "state": "Running" if n < world else "Waiting", "step": 7} for n in range(count)]
    return {"ranks": ranks, "summary": _summary({"ranks": str(world)})}


async def _fact(tab: Tab, name: str) -> Any:
    facts = "[...document.querySelectorAll('#facts div')].map(row => [...row.children].map(e => e.innerText))"
    return dict(await tab.value(facts)).get(name)


async def test_ranks_that_are_there_no_more_are_hidden(tmp_path: Path) -> None:
    """A smaller world hides them, a larger one shows them again, in their order, and each of them once."""
    seen = "[...document.querySelectorAll('.ranks li:not([hidden]) button')].map(e => e.dataset.rank)"
    async with _shown(tmp_path, **_ranks(4, 4)) as tab:
        for count in (2, 6, 3):
            await tab.value(f"run = {json.dumps({**RUN, **_ranks(count, count)})}, shown()")
            assert await tab.value(seen) == [str(rank) for rank in range(count)]
        assert await tab.value("document.querySelectorAll('.ranks button').length") == 6


async def test_the_ranks_of_an_elastic_job_are_those_of_its_world(tmp_path: Path) -> None:
    """Not the places that it has for ranks; before there is a world, it has no other number."""
    async with _shown(tmp_path, **_ranks(6, 4)) as tab:
        assert await _fact(tab, "ranks") == "4"
        await tab.value("run.summary.shown.ranks = '', shown()")
        assert await _fact(tab, "ranks") == "6"


async def test_the_number_of_an_attempt(tmp_path: Path) -> None:
    """One that ended before it had a launcher left no logs: the third of two is no attempt."""
    async with _shown(tmp_path, attempt=3, attempts=[{**SUMMARY, "attempt": 2}, {**SUMMARY, "attempt": 3}]) as tab:
        assert await _fact(tab, "attempt") == "3"


async def test_steps_have_all_their_digits(tmp_path: Path) -> None:
    """Those of the axis, of a point, and of the facts; values have four."""
    points = [[12345678, 0.123456], [12345679, 2345678.9]]
    async with _shown(
        tmp_path, summary=_summary({"steps": "12345679"}), curves=[{"name": "loss", "of": "step", "points": points}]
    ) as tab:
        texts = await tab.value("[...document.querySelectorAll('figure svg text')].map(e => e.textContent)")
        assert texts[-2:] == ["12345678", "step 12345679"]
        assert texts[:2] == ["0", "1.00e+6"]
        assert await tab.value("document.querySelector('figcaption output').innerText") == "step 12345679: 2.35e+6"
        assert await _fact(tab, "steps") == "12345679"


async def test_durations(tmp_path: Path) -> None:
    """No part of one is 60 of what it is a part of."""
    words = {
        0: "0.0 s", 89.9: "89.9 s", 90: "1 min 30 s", 119.6: "2 min 0 s", 3599.7: "60 min 0 s", 5400: "1 h 30 min",
        7199: "2 h 0 min", 360_000: "100 h 0 min",
    }  # fmt: skip
    async with _shown(tmp_path) as tab:
        for seconds, said in words.items():
            assert await tab.value(f"duration({seconds})") == said


async def test_a_log_that_is_too_fast_has_no_gap(tmp_path: Path) -> None:
    """The lines that are shown follow each other in the log; those that were left out are among the older ones."""
    async with _shown(tmp_path) as tab:
        for before, skipped, line in ((0, 0, "a"), (2, 0, "b"), (100, 96, "c"), (102, 0, "d")):
            await tab.value(f"added({json.dumps({'lines': [line], 'before': before, 'skipped': skipped})})")
        assert await tab.value("document.getElementById('lines').innerText") == "c\nd"
        assert await tab.value("[parts[0].before, document.getElementById('older').hidden]") == [100, False]


async def test_long_words_stay_within_the_page(tmp_path: Path) -> None:
    """A path in a message, a metric's name and a step of eight digits widen no narrow screen, and a long cause
    leaves the other columns of the table of attempts their words."""
    path = "/data/" + "deep" * 30
    failure = {"rank": 0, "message": f"{path} is not there. " * 5}
    failed = _summary({"state": "Failed", "took": "0 s"}, state="Failed", failure=failure, directory=path)
    more = {
        "summary": failed, "log": {"lines": [path], "before": 1},
        "attempts": [{**failed, "attempt": n, "began": 1e9, "ended": 1e9} for n in (1, 2)],
        "curves": [{"name": "m" * 90, "of": "step", "points": [[1, 1], [2, 2]]}],
        "ranks": [{"rank": n, "state": "Failed", "step": 12345678 + n} for n in (1000, 1001)],
        "events": [{"time": 1e9, "kind": "Failed", "text": path}],
    }  # fmt: skip
    async with _shown(tmp_path, **more) as tab:
        wide = "[...document.querySelectorAll('.ranks button')].filter(e => e.scrollWidth > e.clientWidth).length"
        for width in (360, 1000):
            await tab.open(tmp_path / "page.html", width=width)
            assert await tab.value("document.documentElement.scrollWidth") <= width
            assert await tab.value(wide) == 0
            assert width < 500 or await tab.value("document.querySelector('#attempts th').offsetHeight") < 40
