"""`dtj ui`: a job's page through a real API server. The tests' node plays the kubelet's end of the forward."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.apiserver import ControlPlane
from support.asking import ask
from support.browser import open_browser
from support.cluster import Cluster, real_cluster
from support.jobs import python_job, state
from support.kubelet import ProcessRuntime
from support.scenario import operated

from ringtrain_client.jobs.launcher_report import read_launcher_report
from ringtrain_client.jobs.session import ClusterAccess
from ringtrain_operator.cluster.api.resources import JOBS, PODS

pytestmark = pytest.mark.apiserver
DTJ = [sys.executable, "-m", "ringtrain_client.cli"]
# An attempt ends when its file is there, the first one badly.
PROGRAM = """
import os, pathlib, sys, time
import ringtrain as rt
rank, attempt = os.environ["RANK"], os.environ["RINGTRAIN_ATTEMPT"]
rt.report(step=int(attempt), total_steps=10, loss=1.0)
print("in attempt", attempt)
end = time.monotonic() + 120
while not pathlib.Path(os.environ["GO_ON"] + attempt).exists() and time.monotonic() < end:
    time.sleep(0.05)
sys.exit(3 if attempt == "1" and rank == "1" else 0)
"""


def _job(go_on: Path) -> dict[str, Any]:
    logs = {"persistentVolumeClaim": {"claimName": "runs"}, "report": True}
    return python_job("seen", PROGRAM, go_on, slotsPerWorker=2, logs=logs)


@asynccontextmanager
async def _forwarded(c: Cluster, folder: Path, namespace: str) -> AsyncIterator[str]:
    """The link that `dtj ui` prints, while it runs."""
    process = await asyncio.create_subprocess_exec(
        *(*DTJ, "ui", "seen", "--namespace", namespace),
        env={**os.environ, "KUBECONFIG": str(c.kubeconfig(folder))},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            yield (await process.stdout.readline()).decode().strip()
    finally:
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 130


def _ask(url: str) -> tuple[int, str]:
    """With the cookies of other programs on this host, as many as a browser keeps."""
    return ask(url, Cookie="other=" + "x" * 40_000)


async def test_one_link_shows_all_attempts(
    control_plane: ControlPlane, tmp_path: Path, runtime: ProcessRuntime
) -> None:
    """The page follows the job into its second attempt, whose launcher has another token; without the link's token
    the forward answers 401, before it asks the cluster; at the end each attempt's report is in the log store, and
    there is no link to a page that nobody serves."""
    async with operated(real_cluster(control_plane), runtime, tmp_path / "nodes") as (c, ns):
        await c.api.create(JOBS, ns, _job(tmp_path / "go-on-"))
        await c.until(JOBS, ns, "seen", lambda j: state(j) == "Running")
        report = await read_launcher_report(ClusterAccess(c.api, ns), "seen")
        assert report is not None
        assert {rank["state"] for rank in report.ranks} == {"Running"}
        assert await read_launcher_report(ClusterAccess(c.api, ns), "nosuch") is None
        async with _forwarded(c, tmp_path, ns) as link, open_browser(tmp_path / "browser") as tab:
            base = link.partition("?")[0]
            for refused in (base, f"{base}page/log", f"{base}?token={'0' * 64}"):
                code, text = await asyncio.to_thread(_ask, refused)
                assert (code, "seen" in text) == (401, False)
            await tab.visit(link, ends_at=base)
            await tab.until("document.getElementById('lines').innerText.includes('[1] in attempt 1')")
            await tab.until("document.getElementById('facts').innerText.includes('1/10')")
            assert tab.complaints == []
            (tmp_path / "go-on-1").touch()
            await tab.until("document.getElementById('state').innerText === '✗ Failed'")
            await tab.until("document.getElementById('lines').innerText.includes('[1] in attempt 2')")
            await tab.until("document.getElementById('attempts').innerText.includes('rank 1 exited with 3')")
            told = "attempt 1 ended: rank 1 exited with 3"
            await tab.until(f"document.querySelector('#time .events').innerText.includes({told!r})")
            (tmp_path / "go-on-2").touch()
            await tab.until("document.getElementById('state').innerText === '✓ Succeeded'")
        await c.until(JOBS, ns, "seen", lambda j: state(j) == "Succeeded")
        pod = await c.api.get(PODS, ns, "seen-launcher")
        assert pod["status"]["phase"] == "Succeeded"
        ended = await asyncio.create_subprocess_exec(
            *(*DTJ, "ui", "seen", "--namespace", ns),
            env={**os.environ, "KUBECONFIG": str(c.kubeconfig(tmp_path))},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(60):
            out, err = await ended.communicate()
        assert (out, ended.returncode) == (b"", 1)
        assert f"{ns}/seen has ended (Succeeded)".encode() in err
        reports = sorted(path.parent.name for path in tmp_path.rglob("report.html"))
        assert reports == ["1", "2"]
