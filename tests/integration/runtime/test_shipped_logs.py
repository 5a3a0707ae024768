"""A real launcher copies its log store into a real S3 server, and the copy is to the byte what ranks wrote."""

from collections.abc import Callable

import pytest
from support.gang import GangProcesses, until
from support.objectstore import BUCKET, Proxy, environment, s3_server

from ringtrain.logs.shipping import read_shipped
from ringtrain.storage import ObjectStore

LINES = 2000
PRINTS = f"""
import os
for number in range({LINES}):
    print("line", number, "of rank", os.environ["RANK"])
"""


def test_logs_outlive_the_launchers_volume(
    gang: Callable[..., GangProcesses], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store refuses connections until the ranks have ended; the launcher ships all before it ends."""
    with s3_server() as server, Proxy(server.address) as proxy:
        proxy.refuses = True
        uri = f"s3://{BUCKET}/logs/ns/digits-uid"
        job = gang(1, 2, RINGTRAIN_TIMEOUT="60")
        launcher = job.launcher(RINGTRAIN_LOG_URI=uri, **environment(proxy.url))
        agents = job.agents(*job.python(PRINTS))
        assert [agent.wait() for agent in agents] == [0]
        until("the launcher has tried", lambda: proxy.connections)
        proxy.refuses = False
        assert launcher.wait(120) == 0
        for name, value in environment(server.url).items():
            monkeypatch.setenv(name, value)
        store = ObjectStore(uri)
        found = b"".join(read_shipped(store, 1, "rank-0001.log"))
        assert found == job.rank_log(1)
        assert found.count(b"\n") == LINES
        merged = b"".join(read_shipped(store, 1, "job.log"))
        assert merged == (job.logs / "job.log").read_bytes()
        store.close()
