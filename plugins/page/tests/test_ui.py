"""`ringtrain ui`: runs that go on and runs that ended, from real processes, in a real browser."""

import http.client
import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.browser import open_browser
from support.commands import completed
from support.gang import DEADLINE_S, until

pytestmark = pytest.mark.slow

# Reports 20 steps, and goes on until a file `end` is there if it is asked to.
PROGRAM = """
import pathlib, sys, time
import ringtrain as rt
rt.init()
for step in range(1, 21):
    rt.report(step, total_steps=20, samples=4, loss=1 / step)
    time.sleep(0.01)
print("told", flush=True)
end = time.monotonic() + 120
while sys.argv[1:] and not pathlib.Path(sys.argv[1]).exists() and time.monotonic() < end:
    time.sleep(0.02)
"""
ROWS = "[...document.querySelectorAll('#runs tbody tr')].map(row => [...row.cells].slice(0, 5).map(c => c.innerText))"


def _command(*words: str) -> list[str]:
    return [sys.executable, "-m", "ringtrain", *words]


def _start(folder: Path, name: str, *words: str) -> "subprocess.Popen[bytes]":
    asked = ["run", "-q", "-np", "2", "--name", name, sys.executable, str(folder / "train.py"), *words]
    return subprocess.Popen(_command(*asked), cwd=folder, stdout=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one run, `ended`."""
    made = tmp_path_factory.mktemp("kept")
    (made / "train.py").write_text(PROGRAM)
    assert _start(made, "ended").wait(DEADLINE_S) == 0
    return made


@pytest.fixture
def folder(kept: Path, tmp_path: Path) -> Path:
    """A copy of it, for the test alone."""
    return Path(shutil.copytree(kept, tmp_path / "work"))


@contextmanager
def _ui(folder: Path, *words: str) -> Iterator[str]:
    """The link that `ringtrain ui` prints, which ends well by Ctrl-C, and leaves its port."""
    process = subprocess.Popen(
        _command("ui", *words), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        link = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\S*\?token=[0-9a-f]{64}", link), link
        yield link
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, said.splitlines()[-1]) == (0, "stopped serving the page")
        with pytest.raises(ConnectionRefusedError):
            _get(link, "/")
    finally:
        process.kill()
        process.wait()


def _get(link: str, path: str, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(urlsplit(link).netloc, timeout=DEADLINE_S)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


@pytest.mark.parametrize("name", ["copy", "1.earlier-1", "7 (2)", "\N{SUPERSCRIPT TWO}"])
def test_an_attempt_that_was_copied_or_renamed_is_read(folder: Path, name: str) -> None:
    """By every command that reads a run: the number of the attempt is the digits at the beginning, else 1."""
    attempt = (folder / "runs/local/ended/1").rename(folder / "runs/local/ended" / name)
    commands = [["report"], ["compare", str(attempt)], ["export", "--to", "tensorboard"], ["logs"]]
    for words in commands:
        done = completed(_command(*words, str(attempt)), cwd=folder)
        assert (done.returncode, done.stderr) == (0, ""), words
    compared = completed(_command("compare", str(attempt), str(attempt)), cwd=folder).stdout
    assert compared.splitlines()[1].startswith("ended " if name.isdecimal() else f"ended/{name} ")
    number = 7 if name.startswith("7") else 1
    assert re.search(rf'"attempt": ?{number},', (attempt / "report.html").read_text())
    with _ui(folder, str(attempt)) as link:
        assert _get(link, f"{urlsplit(link).path}?{urlsplit(link).query}")[0] == 303


def test_a_folder_without_runs_is_served(tmp_path: Path) -> None:
    """The page will show later runs. A line on stderr says how to create one."""
    process = subprocess.Popen(
        _command("ui", "--runs", "nosuch"), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("http://127.0.0.1:")
        assert process.stderr.readline().startswith("nosuch does not exist, so there are no runs; `ringtrain run")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


async def test_runs_are_pages(folder: Path, tmp_path: Path) -> None:
    """One that goes on is followed to its end by its launcher's page, one that ended is read from its files, and
    the list shows how things are, at any width."""
    going = _start(folder, "going", "end")
    try:
        until("it goes on", lambda: "told" in _text(folder / "runs/local/going/1/job.log"))
        assert (folder / "runs/local/going/1/.page.json").stat().st_mode & 0o777 == 0o600
        with _ui(folder) as link:
            base = link.partition("?")[0]
            async with open_browser(tmp_path / "browser") as tab:
                for width in (1280, 390):
                    await tab.visit(link, width, ends_at=base)
                    await tab.until("document.querySelectorAll('#runs tbody tr').length === 2")
                    assert await tab.value("document.documentElement.scrollWidth") <= width
                assert await tab.value(ROWS) == [
                    ["going", "● Running", "2", "20/20", "0.05"],
                    ["ended", "✓ Succeeded", "2", "20/20", "0.05"],
                ]
                assert "samples/s" in await tab.value("document.querySelectorAll('#runs tbody tr')[1].innerText")

                await tab.value("document.querySelector('#runs a[href=\"/runs/ended/\"]').click()")
                await tab.until(_says("state", "✓ Succeeded"))
                assert "20/20" in await tab.value("document.getElementById('facts').innerText")
                await tab.value("document.getElementById('up').click()")
                await tab.until("document.querySelectorAll('#runs tbody tr').length === 2")

                await tab.value("document.querySelector('#runs a[href=\"/runs/going/\"]').click()")
                await tab.until(_says("link", "● live"))
                assert await tab.value("location.port") != str(urlsplit(link).port)
                assert tab.complaints == []
                (folder / "end").touch()
                await tab.until(_says("state", "✓ Succeeded"))
                assert going.wait(DEADLINE_S) == 0
                assert not (folder / "runs/local/going/1/.page.json").exists()

                await tab.visit(f"{base}runs/going/")
                await tab.until(_says("state", "✓ Succeeded"))
    finally:
        going.kill()
        going.wait()


def _says(element: str, text: str) -> str:
    """JavaScript: the element has this text. While a page is loaded it may not be there."""
    return f"document.getElementById('{element}')?.innerText === '{text}'"


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize("named", ["ended", "runs/local/ended"], ids=["by-name", "by-folder"])
async def test_one_run(named: str, folder: Path, tmp_path: Path) -> None:
    """The link of a run is its page; the token does not stay in the address."""
    with _ui(folder, named) as link:
        async with open_browser(tmp_path / "browser") as tab:
            await tab.visit(link, ends_at=link.partition("?")[0])
            assert await tab.value("document.getElementById('job').innerText") == "ended"
            assert "[1] told" in await tab.value("document.getElementById('lines').innerText")


async def test_an_empty_folder_fills(kept: Path, tmp_path: Path) -> None:
    """It says that there is nothing, and shows the first run without being loaded again, whose `run.json` is cut
    short: then what ran is not known, and the rest is."""
    runs = tmp_path / "runs"
    runs.mkdir()
    with _ui(tmp_path) as link:
        async with open_browser(tmp_path / "browser") as tab:
            await tab.visit(link, ends_at=link.partition("?")[0])
            await tab.until("document.getElementById('runs').innerText.startsWith('No runs here yet')")
            made = shutil.copytree(kept / "runs/local/ended", tmp_path / "a run")
            (made / "1/run.json").write_text('{"command": ["pyth')
            made.rename(runs / "a run")
            await tab.until("document.querySelectorAll('#runs tbody tr').length === 1")
            await tab.value("document.querySelector('#runs tbody a').click()")
            await tab.until(_says("state", "✓ Succeeded"))
            assert await tab.value("document.getElementById('about').hidden") is True
            assert tab.complaints == []


async def test_runs_are_filtered_sorted_and_chosen(kept: Path, tmp_path: Path) -> None:
    """By what differs in their configurations, too; the chosen ones are compared; the choice stays while the list is
    loaded again, and on a narrow screen nothing is cut."""
    for number, lr in enumerate((0.1, 0.02, 0.3)):
        made = Path(shutil.copytree(kept / "runs/local/ended/1", tmp_path / f"runs/local/run-{number}/1"))
        (made / "run.json").write_text(json.dumps({"config": {"lr": lr, "model": "small"}}))
    names = "[...document.querySelectorAll('#runs tbody a')].map(link => link.innerText)"
    press = "[...document.querySelectorAll('#runs th button')].find(one => one.innerText === '%s').click()"
    with _ui(tmp_path) as link:
        base = link.partition("?")[0]
        async with open_browser(tmp_path / "browser") as tab:
            await tab.visit(link, 390, ends_at=base)
            await tab.until(f"{names}.length === 3")
            assert await tab.value("document.documentElement.scrollWidth") <= 390
            wide = "[...document.querySelectorAll('.scroll, td')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
            assert await tab.value(wide) == 0
            await tab.value(press % "lr")
            assert await tab.value(names) == ["run-1", "run-0", "run-2"]
            await tab.value(press % "lr")
            assert await tab.value(names) == ["run-2", "run-0", "run-1"]
            await tab.value(press % "run")
            assert await tab.value(names) == ["run-0", "run-1", "run-2"]
            for number in (0, 2):
                await tab.value(f"document.querySelectorAll('#runs input[type=checkbox]')[{number}].click()")
            await tab.value("listed()")
            filtered = "(e => { e.value = 'lr=0.02 succ'; e.dispatchEvent(new Event('input')); })"
            await tab.value(f"{filtered}(document.getElementById('filter'))")
            assert await tab.value(names) == ["run-1"]
            assert await tab.value("document.getElementById('choice').innerText") == "Compare 2 runs"
            await tab.value("document.getElementById('choice').click()")
            await tab.until("document.getElementById('compare')?.hidden === false")
            cells = "[...document.querySelectorAll('#compare td')].map(cell => [cell.dataset.name, cell.innerText])"
            assert [value for name, value in await tab.value(cells) if name in ("run", "lr")] == [
                *("run-0", "0.1", "run-2", "0.3")
            ]
            assert tab.complaints == []
        shown = {"Authorization": f"Bearer {link.rpartition('=')[2]}"}
        for query in ("", "?run=run-0", "?run=run-0&run=other"):
            assert _get(link, f"/compare{query}", **shown)[0] == 404


def test_strangers_get_nothing(folder: Path) -> None:
    """Neither without the token, nor by another host's name, nor outside the folder."""
    with _ui(folder) as link:
        shown = {"Authorization": f"Bearer {link.rpartition('=')[2]}"}
        for path in ("/", "/runs.json", "/runs/ended/", "/compare?run=ended&run=ended"):
            assert _get(link, path)[0] == 401
            assert _get(link, path, Authorization=f"Bearer {'0' * 64}")[0] == 401
            assert _get(link, path, Host="attacker.example", **shown)[0] == 421
            assert _get(link, path, **shown)[0] == 200
        for path in ("/runs/../work/", "/runs/%2e%2e/", "/runs/other/", "/train.py", "/page/files/job.log"):
            assert _get(link, path, **shown)[0] == 404, path


def _listed(folder: Path, form: str) -> str:
    done = completed(_command("list", "-o", form), cwd=folder, timeout=DEADLINE_S, check=True)
    return done.stdout


def test_runs_are_data(folder: Path) -> None:
    """`-o json` and `-o yaml` have the same, and numbers as numbers; `-o name` has names."""
    yaml = pytest.importorskip("yaml")
    (found,) = json.loads(_listed(folder, "json"))
    assert yaml.safe_load(_listed(folder, "yaml")) == [found]
    assert _listed(folder, "name") == "ended\n"
    assert (found["name"], found["state"], found["ranks"]) == ("ended", "Succeeded", 2)
    assert (found["step"], found["totalSteps"], found["loss"], found["unit"]) == (20, 20, 0.05, "samples")
    assert found["speed"] > 0
    assert (folder / found["directory"] / "job.log").exists()


def test_no_such_run(folder: Path) -> None:
    """The error names the runs that there are."""
    done = completed(_command("ui", "other"), cwd=folder, timeout=DEADLINE_S)
    assert done.returncode == 1
    assert "other is neither a run in runs nor a folder; the newest runs are ended" in done.stderr
