"""The page of a run that goes on, from its real launcher, in a real browser."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.browser import Tab, open_browser
from support.gang import DEADLINE_S, GangProcesses, until

from ringtrain_page.access import page_token

pytestmark = pytest.mark.slow

# Goes on by one step for each file `step-N` that is put into its directory; a rank says where its process is.
TRAIN = """
import os, pathlib, sys, time, ringtrain as rt
rt.init()
here = pathlib.Path(sys.argv[1])
more = lambda step: {f"metric {n:02}": step for n in range(int(sys.argv[2]))}
if rt.rank() == 0:
    print("\\n".join(f"filler {number}." for number in range(1500)), flush=True)
(here / f"pid-{rt.rank()}").write_text(str(os.getpid()))
end = time.monotonic() + 120
for step in range(1, 7):
    while step > 2 and not (here / f"step-{step}").exists() and time.monotonic() < end:
        time.sleep(0.02)
    rt.report(step=step, total_steps=6, samples=8, loss=4 / step, metrics={"accuracy": step / 6, **more(step)})
    print(f"rank {rt.rank()} has done step {step} <b>&amp;", flush=True)
"""
TOKEN = "a-secret-of-the-launcher"


@dataclass(frozen=True)
class Run:
    """A `ringtrain run --ui` that goes on, its link, and the directory in which it looks for orders."""

    process: "subprocess.Popen[str]"
    link: str
    directory: Path

    @property
    def base(self) -> str:
        return self.link.partition("?")[0]

    def go(self, *steps: int) -> None:
        for step in steps:
            (self.directory / f"step-{step}").touch()


@contextmanager
def _run(directory: Path, metrics: int = 0) -> Iterator[Run]:
    """`metrics`: so many more than accuracy, each the step itself."""
    directory.mkdir()
    (directory / "train.py").write_text(TRAIN)
    words = [
        "run",
        "-np",
        "3",
        "--ui",
        "--name",
        "shown",
        sys.executable,
        "train.py",
        str(directory),
        str(metrics),
    ]
    with (directory / "err").open("w") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "ringtrain", *words],
            cwd=directory, stdout=subprocess.DEVNULL, stderr=err, text=True,
        )  # fmt: skip
    try:
        pattern = re.compile(r"page: (http://127\.0\.0\.1:\d+/\?token=[0-9a-f]{64})\n")
        found = until("the link", lambda: pattern.search((directory / "err").read_text()))
        run = Run(process, found[1], directory)
        until("all ranks run", lambda: len(list(directory.glob("pid-*"))) == 3)
        yield run
        run.go(*range(1, 7))
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait(DEADLINE_S)


async def _see(tab: Tab, run: Run, **screen: bool | int) -> None:
    await tab.visit(run.link, ends_at=run.base, **screen)  # type: ignore[arg-type]
    await tab.until("document.getElementById('link').innerText === '● live'")


async def test_a_page_follows_a_run_to_its_end(tmp_path: Path) -> None:
    """Steps, curves, ranks and log lines arrive while the run goes on; the rank and text that are asked for are
    the only lines; keys reach everything; at 360 px it scrolls in one direction only; at the end it says so."""
    with _run(tmp_path / "run") as run:
        async with open_browser(tmp_path / "browser") as tab:
            await _see(tab, run, width=360, dark=True)
            assert (await tab.value("document.title")).startswith("shown – 20")
            await tab.until("document.getElementById('facts').innerText.includes('2/6')")
            assert "token" not in await tab.value("location.href + document.cookie + document.referrer")
            run.go(3, 4)
            await tab.until("document.getElementById('facts').innerText.includes('4/6')")
            await tab.until(
                "document.getElementById('lines').innerText.includes('[1] rank 1 has done step 4 <b>&amp;')"
            )
            shown = await tab.value("[...document.querySelectorAll('#curves strong')].map(e => e.innerText)")
            assert {"loss", "accuracy"} <= set(shown)
            links = await tab.value("[...document.querySelectorAll('#files a')].map(link => link.pathname)")
            assert {"/page/files/metrics.jsonl", "/page/files/run.json"} <= set(links)
            got = f"Promise.all({links}.map(link => fetch(link).then(answer => answer.status)))"
            assert await tab.value(got) == [200] * len(links)
            assert await tab.value("document.querySelectorAll('.ranks .Running').length") == 3
            assert await tab.value("document.documentElement.scrollWidth") <= 360

            while await tab.value("document.activeElement.dataset.rank") != "2":
                await tab.press("Tab")
            await tab.press("Enter")
            only = "document.getElementById('lines').innerText.split('\\n').every(line => line.startsWith('[2] '))"
            await tab.until(f"{only} && document.getElementById('count').innerText.startsWith('4 lines')")
            await tab.value("document.getElementById('text').value = 'STEP 3'")
            await tab.value("document.getElementById('text').dispatchEvent(new Event('input'))")
            await tab.until("document.getElementById('lines').innerText === '[2] rank 2 has done step 3 <b>&amp;'")
            assert tab.complaints == []
            run.go(5, 6)
            await tab.until("document.getElementById('state').innerText === '✓ Succeeded'")
            await tab.until("document.getElementById('link').innerText.includes('The launcher has ended')")
            assert "6/6" in await tab.value("document.getElementById('facts').innerText")


async def test_curves_that_are_not_on_the_screen_are_drawn_when_they_come_there(tmp_path: Path) -> None:
    """Until then they are as they were: thirty curves that are drawn each second cost memory for nothing."""
    with _run(tmp_path / "run", metrics=25) as run:
        async with open_browser(tmp_path / "browser") as tab:
            await _see(tab, run, width=360)
            first = "document.querySelector('#curves svg').getAttribute('aria-label')"
            last = "[...document.querySelectorAll('#curves svg')].at(-1)"
            await tab.until(f"{last}?.getAttribute('aria-label').includes('metric 24 by step: from 1 to 2,')")
            run.go(3, 4)
            await tab.until(f"{first}.includes('loss by step: from 4 to 1,')")
            shown = await tab.value(f"{last}.getAttribute('aria-label')")
            await tab.value(f"{last}.scrollIntoView()")
            await tab.until(f"{last}.getAttribute('aria-label').includes('from 1 to 4,')")
            assert "from 1 to 2," in shown
            assert tab.complaints == []


async def test_older_lines_come_on_demand(tmp_path: Path) -> None:
    """The page begins with the newest thousand; one press of a button brings those before, above them."""
    with _run(tmp_path / "run") as run:
        async with open_browser(tmp_path / "browser") as tab:
            await _see(tab, run)
            await tab.until("document.getElementById('lines').innerText.includes('[0] filler 1499.')")
            await tab.value("document.getElementById('rank').value = '0'")
            await tab.value("document.getElementById('rank').dispatchEvent(new Event('input'))")
            only = "document.getElementById('lines').innerText.split('\\n').every(line => line.startsWith('[0] '))"
            await tab.until(f"{only} && document.getElementById('count').innerText.startsWith('1000 lines')")
            await tab.until("!document.getElementById('older').disabled")
            assert await tab.value("document.getElementById('lines').innerText.includes('[0] filler 0.')") is False
            await tab.value("document.getElementById('older').focus()")
            await tab.press("Enter")
            await tab.until("document.getElementById('lines').innerText.startsWith('[0] filler 0.')")
            lines = (await tab.value("document.getElementById('lines').innerText")).splitlines()
            assert lines[:1500] == [f"[0] filler {number}." for number in range(1500)]
            assert await tab.value("document.getElementById('older').hidden") is True
            assert tab.complaints == []


async def test_a_killed_rank_shows(tmp_path: Path) -> None:
    """The page marks the rank, names the failure, and keeps both after the launcher's end."""
    with _run(tmp_path / "run") as run:
        async with open_browser(tmp_path / "browser") as tab:
            await _see(tab, run)
            os.kill(int((run.directory / "pid-1").read_text()), signal.SIGKILL)
            await tab.until("document.getElementById('state').innerText === '✗ Failed'")
            assert "rank 1 was killed by SIGKILL" in await tab.value("document.getElementById('failure').innerText")
            failed = "[...document.querySelectorAll('.ranks .Failed')].map(e => e.dataset.rank)"
            assert await tab.value(failed) == ["1"]
            await tab.until("document.getElementById('link').innerText.includes('this is the last state')")
            events = await tab.value("document.querySelector('.events').innerText")
            assert "Failed rank 1 was killed" in events


def _ask(url: str, **headers: str) -> tuple[int, str, str]:
    """Status, headers and body."""
    asked = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.build_opener(_Stays()).open(asked, timeout=DEADLINE_S) as answer:
            return answer.status, str(answer.headers), answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, str(error.headers), error.read().decode()


class _Stays(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer."""

    def redirect_request(self, *_: object) -> None:
        return None


@pytest.mark.parametrize(
    "path", ["", "page/events", "page/log", "page/files/job.log", "page/files/timeline.json", "page/nothing"]
)
def test_nothing_is_served_without_the_token(path: str, waiting: GangProcesses) -> None:
    """Neither without one nor with another; the refusal names nothing of the job; no token is in the log."""
    base, token = f"http://127.0.0.1:{waiting.status_port}/", page_token(TOKEN)
    refused = [
        _ask(base + path),
        _ask(base + path + "?token=" + token[:-1]),
        _ask(base + path + "?token="),
        _ask(base + path, Authorization=f"Bearer {TOKEN}"),  # the launcher's own token is not the page's
        _ask(base + path, Authorization="Bearer \xe9"),
        _ask(base + path, Cookie=f"ringtrain-00000000={token}"),
        _ask(base + path, Cookie='ringtrain="\\'),
    ]
    assert {code for code, _, _ in refused} == {401}
    assert {body for _, _, body in refused} == {refused[0][2]}
    assert "job" not in refused[0][2].replace("dtj ui JOB", "")
    (launcher,) = waiting.pods
    assert token not in launcher.err() + launcher.out()


def test_the_token_in_the_link_becomes_a_cookie(waiting: GangProcesses, tmp_path: Path) -> None:
    """It leaves the address at once; scripts cannot read the cookie; no answer is cached, framed or refers."""
    base, token = f"http://127.0.0.1:{waiting.status_port}/", page_token(TOKEN)
    code, headers, body = _ask(f"{base}?token={token}")
    assert (code, body) == (303, "")
    assert "Location: /\n" in headers
    (cookie,) = re.findall(r"Set-Cookie: (ringtrain-[0-9a-f]{8}=[0-9a-f]{64}); HttpOnly; SameSite=Lax; Path=/", headers)
    code, headers, body = _ask(base, Cookie=cookie)
    assert code == 200
    assert token not in body
    for said in ("Cache-Control: no-store", "Referrer-Policy: no-referrer", "X-Frame-Options: DENY"):
        assert said in headers
    assert _ask(f"{base}page/files/job.log", Cookie=cookie)[0] == 200
    assert _ask(f"{base}page/files/timeline.json", Cookie=cookie)[0] == 404
    (tmp_path / "trace.json").write_text("[]")
    assert _ask(f"{base}page/files/timeline.json", Cookie=cookie)[::2] == (200, "[]")
    for other in ("trace.json", "../../x", "..%2f..%2fx", ".journal", "rank-1.log", "nothing"):
        assert _ask(f"{base}page/files/{other}", Cookie=cookie)[0] == 404


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[GangProcesses]:
    """A launcher that waits for its workers."""
    job = GangProcesses(tmp_path, 1, 2, RINGTRAIN_STATUS_TOKEN=TOKEN, RINGTRAIN_TIMELINE=str(tmp_path / "trace.json"))
    try:
        launcher = job.launcher()
        until("it listens", lambda: "status on port" in launcher.err())
        yield job
    finally:
        job.close()


async def test_a_page_comes_back_with_its_launcher(waiting: GangProcesses, tmp_path: Path) -> None:
    """While the launcher is gone the page says so and keeps what it had; it goes on with the next launcher."""
    base = f"http://127.0.0.1:{waiting.status_port}/"
    async with open_browser(tmp_path / "browser") as tab:
        await tab.visit(f"{base}?token={page_token(TOKEN)}", ends_at=base)
        await tab.until("document.getElementById('state').innerText === '○ Waiting for workers'")
        assert tab.complaints == []
        waiting.pods[0].kill()
        await tab.until("document.getElementById('link').innerText.startsWith('No connection to the launcher')")
        assert await tab.value("document.getElementById('job').innerText") == "job"
        launcher = await asyncio.to_thread(waiting.launcher)
        await tab.until("document.getElementById('link').innerText === '● live'")
        await tab.until("document.querySelector('.events').innerText.includes('the launcher was restarted')")
        assert launcher.process.poll() is None


async def test_a_page_says_why_it_is_refused(waiting: GangProcesses, tmp_path: Path) -> None:
    """A launcher that has another token is there: the page says where its link comes from."""
    base = f"http://127.0.0.1:{waiting.status_port}/"
    async with open_browser(tmp_path / "browser") as tab:
        await tab.visit(f"{base}?token={page_token(TOKEN)}", ends_at=base)
        await tab.until("document.getElementById('link').innerText === '● live'")
        waiting.pods[0].kill()
        await tab.until("document.getElementById('link').innerText.startsWith('No connection to the launcher')")
        await asyncio.to_thread(waiting.launcher, RINGTRAIN_STATUS_TOKEN="another")
        await tab.until("document.getElementById('link').innerText.startsWith('this page needs the token in its link')")
        assert "this is the last state" in await tab.value("document.getElementById('link').innerText")
