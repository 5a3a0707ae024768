"""`dtj local --ui`: the page of a job on this machine."""

import http.cookiejar
import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from support.commands import completed
from support.deadlines import patient
from support.jobs import job
from support.local import until

PROGRAM = """
import pathlib, sys, time
print("in attempt", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.05)
"""


def test_the_link_opens_the_page_while_the_job_runs(tmp_path: Path) -> None:
    """It is printed first; without its token the answer is 401; the log is behind it."""
    manifest, done = tmp_path / "job.yaml", tmp_path / "done"
    wanted = job("t")
    wanted["spec"]["worker"]["template"]["spec"]["containers"][0]["command"] = ["python", "-c", PROGRAM, str(done)]
    manifest.write_text(yaml.safe_dump(wanted))
    words = [sys.executable, "-m", "ringtrain_client.cli", "local", "--ui", "--plain", str(manifest)]
    with (tmp_path / "out").open("w") as out:
        process = subprocess.Popen(words, cwd=tmp_path, stdout=out, stderr=out)
    try:
        pattern = re.compile(r"page: (http://127\.0\.0\.1:\d+/)(\?token=[0-9a-f]{64})\n")
        base, token = until(lambda: pattern.findall((tmp_path / "out").read_text()))[0]
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))

        def page() -> str:
            try:
                with opener.open(base + token, timeout=patient(60)) as answer:
                    return str(answer.read().decode())
            except urllib.error.HTTPError:
                raise
            except OSError:  # the launcher does not listen yet
                return ""

        assert "<title>Ringtrain</title>" in until(page)
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(base, timeout=patient(60))
        until(lambda: opener.open(base + "page/log", timeout=patient(60)).read().count(b"in attempt") == 2)
    finally:
        done.touch()
        assert process.wait(120) == 0, (tmp_path / "out").read_text()


def test_ringtrain_ui_leads_to_the_page_of_a_job_that_runs(tmp_path: Path) -> None:
    """Also of one that was started without `--ui`; when the job has ended, its page is made of its files."""
    manifest, done = tmp_path / "job.yaml", tmp_path / "done"
    wanted = job("t")
    wanted["spec"]["worker"]["template"]["spec"]["containers"][0]["command"] = ["python", "-c", PROGRAM, str(done)]
    manifest.write_text(yaml.safe_dump(wanted))
    words = [sys.executable, "-m", "ringtrain_client.cli", "local", "--plain", str(manifest)]
    with (tmp_path / "out").open("w") as out:
        process = subprocess.Popen(words, cwd=tmp_path, stdout=out, stderr=out)
    (tmp_path / "runs").mkdir(exist_ok=True)
    shown = [sys.executable, "-m", "ringtrain", "ui"]
    served = subprocess.Popen(shown, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        until(lambda: list((tmp_path / "runs").glob("*/logs/default/t/1/.page.json")))
        assert served.stdout is not None
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))
        link = served.stdout.readline().strip()
        opener.open(link, timeout=patient(60))
        base = link.partition("?")[0]
        (run,) = json.loads(opener.open(f"{base}runs.json", timeout=patient(60)).read())
        assert (run["state"], run["ranks"]) == ("Running", 2)
        with opener.open(base.rstrip("/") + run["link"], timeout=patient(60)) as answer:
            assert urlsplit(answer.url).netloc != urlsplit(link).netloc
            assert b'{"live":true}' in answer.read()
        done.touch()
        assert process.wait(120) == 0
        with opener.open(base.rstrip("/") + run["link"], timeout=patient(60)) as answer:
            assert urlsplit(answer.url).netloc == urlsplit(link).netloc
            assert b'"state":"Succeeded"' in answer.read()
        served.send_signal(signal.SIGINT)
        assert served.wait(60) == 0
    finally:
        served.kill()
        served.wait()
        done.touch()
        assert process.wait(120) == 0, (tmp_path / "out").read_text()


REPORTS = """
import pathlib, sys, time
import ringtrain as rt
rt.report(step=1, loss=1.0)
end = time.monotonic() + 120
while not pathlib.Path(sys.argv[1]).exists() and time.monotonic() < end:
    time.sleep(0.05)
"""


def test_where_the_start_went_is_told(tmp_path: Path) -> None:
    """By `dtj why --local`, while the job runs and when it is over: there is no scheduler and no pull."""
    manifest, done = tmp_path / "job.yaml", tmp_path / "done"
    wanted = job("t")
    wanted["spec"]["worker"]["template"]["spec"]["containers"][0]["command"] = ["python", "-c", REPORTS, str(done)]
    manifest.write_text(yaml.safe_dump(wanted))
    dtj = [sys.executable, "-m", "ringtrain_client.cli"]
    with (tmp_path / "out").open("w") as out:
        process = subprocess.Popen([*dtj, "local", "--plain", str(manifest)], cwd=tmp_path, stdout=out, stderr=out)

    def why() -> str:
        asked = [*dtj, "why", "t", "--local"]
        return completed(asked, cwd=tmp_path, timeout=patient(60)).stdout

    pattern = re.compile(r"start: queued \d+ s, started \d+ s, formed \d+ s, first step \d+ s")
    try:
        told = until(lambda: pattern.search(why()))
    finally:
        done.touch()
        assert process.wait(120) == 0, (tmp_path / "out").read_text()
    assert told is not None
    assert told[0] in why()
