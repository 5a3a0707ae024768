"""A real launcher copies its log store into a real S3 server, and the copy is to the byte what ranks wrote."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from support.gang import GangProcesses, until
from support.objectstore import BUCKET, Proxy, Server, environment

from ringtrain.shared.storage import ObjectStore
from ringtrain_job.logs.shipping import read_shipped

LINES = 2000
PRINTS = f"""
import os
for number in range({LINES}):
    print("line", number, "of rank", os.environ["RANK"])
"""

WAITS = """
import pathlib, time
while not pathlib.Path('{go_on}').exists():
    time.sleep(0.05)
print("last words")
"""


def test_logs_outlive_the_launchers_volume(
    gang: Callable[..., GangProcesses], s3: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store refuses connections until the ranks have ended; the launcher ships all before it ends."""
    with Proxy(s3.address) as proxy:
        proxy.refuses = True
        uri = f"s3://{BUCKET}/logs/ns/digits-uid"
        job = gang(1, 2, RINGTRAIN_TIMEOUT="60")
        launcher = job.launcher(RINGTRAIN_LOG_URI=uri, **environment(proxy.url))
        agents = job.agents(*job.python(PRINTS))
        assert [agent.wait() for agent in agents] == [0]
        until("the launcher has tried", lambda: proxy.connections)
        proxy.refuses = False
        assert launcher.wait(120) == 0
        for name, value in environment(s3.url).items():
            monkeypatch.setenv(name, value)
        store = ObjectStore(uri)
        found = b"".join(read_shipped(store, 1, "rank-0001.log"))
        assert found == job.rank_log(1)
        assert found.count(b"\n") == LINES
        merged = b"".join(read_shipped(store, 1, "job.log"))
        assert merged == (job.logs / "job.log").read_bytes()
        store.close()


def test_what_one_launcher_could_not_ship_the_next_one_does(
    gang: Callable[..., GangProcesses], s3: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the store refuses its keys `/status` says so, at the end the termination message; on the same volume a
    launcher that is started again after the end ships the rest, and ends as the first one did."""
    uri = f"s3://{BUCKET}/logs/ns/again-uid"
    job = gang(1, 1, RINGTRAIN_TIMEOUT="4", RINGTRAIN_LOG_URI=uri, **environment(s3.url))
    go_on = job.directory / "go-on"
    s3.check_credentials(True)
    try:
        first = job.launcher()
        (agent,) = job.agents(*job.python(WAITS.format(go_on=go_on)))
        shipping = until("the problem", lambda: _problem(job))
        assert "does not accept these credentials" in shipping["problem"]
        assert re.search(r"^ringtrain_log_shipping_failing{.*} 1.0$", job.get("/metrics"), re.MULTILINE)
        go_on.touch()
        assert (agent.wait(120), first.wait(120)) == (0, 0)
        left = first.message()["unshipped"]
        written = [*job.logs.glob("*.log"), *job.logs.glob("m*.jsonl")]  # with samples of the machine, if any came
        assert left["pendingBytes"] == sum(path.stat().st_size for path in written)
    finally:
        s3.check_credentials(False)
    second = job.launcher()
    assert second.wait(120) == 0
    assert "unshipped" not in second.message()
    for name, value in environment(s3.url).items():
        monkeypatch.setenv(name, value)
    store = ObjectStore(uri)
    assert b"".join(read_shipped(store, 1, "rank-0000.log")) == job.rank_log(0) == b"last words\n"
    store.close()


def _problem(job: GangProcesses) -> dict[str, Any]:
    """Return the shipping part of `/status` once shipping has failed; empty before."""
    shipping: dict[str, Any] = (job.status() or {"logs": {"shipping": {"problem": None}}})["logs"]["shipping"]
    return shipping if shipping["problem"] else {}
