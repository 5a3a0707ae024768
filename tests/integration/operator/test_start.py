"""Times of the parts of a job's start, from a real API server to the launcher's page in a real browser."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.apiserver import ControlPlane
from support.browser import open_browser
from support.cluster import real_cluster
from support.jobs import python_job, state
from support.kubelet import ProcessRuntime
from support.kubelet.pod import image_id
from support.scenario import operated

from ringtrain_client.jobs.page import serving_page
from ringtrain_client.jobs.session import ClusterAccess
from ringtrain_operator.cluster.api.resources import EVENTS, JOBS, PODS
from ringtrain_operator.spec.base import parse_time
from ringtrain_operator.status.model import parse_status

from .test_commands import dtj

pytestmark = pytest.mark.apiserver
PULL_S = 1.2  # so that its Events are of two seconds: Kubernetes' times are whole ones
PROGRAM = """
import os, pathlib, time
import ringtrain as rt
rt.report(step=1, total_steps=2, loss=1.0)
end = time.monotonic() + 120
while not pathlib.Path(os.environ["GO_ON"]).exists() and time.monotonic() < end:
    time.sleep(0.05)
"""


def _seconds(since: Any, until: Any) -> float:
    begin, end = parse_time(since), parse_time(until)
    assert begin is not None
    assert end is not None
    return (end - begin).total_seconds()


async def test_where_a_start_went(control_plane: ControlPlane, tmp_path: Path, runtime: ProcessRuntime) -> None:
    """Status, `dtj why`, the page and the report have the same parts, by the times that pods and Events have in
    the API; the page has what the kubelet says that the image is."""
    logs = {"persistentVolumeClaim": {"claimName": "runs"}, "report": True}
    async with operated(real_cluster(control_plane), runtime, tmp_path / "nodes", pull_s=PULL_S) as (c, ns):
        await c.api.create(JOBS, ns, python_job("begins", PROGRAM, tmp_path / "go-on", workers=2, logs=logs))
        await c.until(JOBS, ns, "begins", lambda j: ((j or {}).get("status") or {}).get("start", {}).get("firstStep"))
        found = await c.api.get(JOBS, ns, "begins")
        start = found["status"]["start"]
        pods = [await c.api.get(PODS, ns, f"begins-{name}") for name in ("launcher", "worker-0", "worker-1")]
        begun = {
            pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
            for pod in pods
        }
        assert start["queued"] == found["metadata"]["creationTimestamp"]
        assert start["created"] == max(pod["metadata"]["creationTimestamp"] for pod in pods)
        assert start["started"] == max(begun.values()) == begun[start["pod"]]
        events = await c.api.select(EVENTS, ns, fields=f"involvedObject.name={start['pod']}")
        times = {event["reason"]: event["firstTimestamp"] for event in events}
        assert (start["pulling"], start["pulled"]) == (times["Pulling"], times["Pulled"])
        assert _seconds(start["pulling"], start["pulled"]) >= 1
        assert start["formed"] <= start["firstStep"]

        code, output = await dtj(c, tmp_path, "why", "begins", "-n", ns)
        assert code == 0
        line = re.search(r"start: (.*) \(the last pod to start was (\S+) on", output)
        assert line is not None, output
        assert line[2] == start["pod"]
        pulled = _seconds(start["pulling"], start["pulled"])
        assert f"pulled {pulled:g} s, started" in line[1]

        async with (
            serving_page(ClusterAccess(c.api, ns), "begins") as link,
            open_browser(tmp_path / "browser") as tab,
        ):
            await tab.visit(link, ends_at=link.partition("?")[0])
            shown = f"pulled {pulled:.1f} s, started"
            await tab.until(f"document.getElementById('start').innerText.includes({shown!r})")
            text = await tab.value("document.getElementById('start').innerText")
            parts = [part.split(" ")[0] for part in text.removeprefix("Start: ").split(", ")]
            assert parts == [
                "queued",
                "scheduled",
                "prepared",
                "pulled",
                "started",
                "joined",
                "formed",
                "first",
            ]
            told = await tab.value("document.querySelector('#time .events').innerText")
            assert f"{start['pod']} on {start['node']} pulls its image" in told
            about = await tab.value("document.getElementById('about').innerText")
            assert image_id("worker") in about
            assert tab.complaints == []
        (tmp_path / "go-on").touch()
        await c.until(JOBS, ns, "begins", lambda j: state(j) == "Succeeded")
        kept = parse_status((await c.api.get(JOBS, ns, "begins"))["status"]).start
        assert kept == parse_status(found["status"]).start
        (report,) = tmp_path.rglob("report.html")
        data = re.search(r'id="data">(.*?)</script>', report.read_text(), re.DOTALL)
        assert data is not None
        document = json.loads(data[1])
        assert [name for name, _ in document["start"]][-1] == "first step"
        assert dict(document["start"])["pulled"] == pulled
        assert document["about"]["imageID"] == image_id("worker")
        assert document["about"]["image"] == "worker"
