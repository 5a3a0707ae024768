"""A job's place in its queue, from responses of Kueue's visibility API."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from ringtrain_client.jobs.causes import explain_job
from ringtrain_client.jobs.queue_place import PAGE, queue_place_text
from ringtrain_client.jobs.session import ClusterAccess
from ringtrain_operator.cluster.api.client import ApiClient
from ringtrain_operator.cluster.api.connection import ApiConnection

Json = dict[str, Any]
QUEUE = "/apis/visibility.kueue.x-k8s.io/{version}/namespaces/team/localqueues/research/pendingworkloads"


def waiting(state: str = "Queued", queued_as: str = "Workload") -> Json:
    """Return a job that waits in the queue `research`."""
    metadata = {"name": "digits", "uid": "0a1b2c3d-0000"}
    status = {"state": state, "attempt": 1, "ledger": {"queuedAs": queued_as}}
    return {"metadata": metadata, "spec": {"scheduling": {"queue": "research"}}, "status": status}


def asked(job: Json, names: list[str], version: str = "v1beta2", status: int = 200) -> tuple[str, int]:
    """Return the text for these waiting Workloads, and the number of requests."""
    requests: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        requests.append(str(request.rel_url))
        if request.path != QUEUE.format(version=version) or status != 200:
            return web.json_response({"kind": "Status", "code": 404, "reason": "NotFound"}, status=max(status, 404))
        begin, limit = int(request.query["offset"]), int(request.query["limit"])
        items = [
            {"metadata": {"name": name}, "positionInLocalQueue": n, "positionInClusterQueue": 2 * n}
            for n, name in enumerate(names)
        ]
        return web.json_response({"items": items[begin : begin + limit]})

    async def ask() -> str:
        app = web.Application()
        app.router.add_get("/{tail:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        try:
            async with ApiClient(ApiConnection(f"http://{host}:{port}")) as api:
                return await queue_place_text(ClusterAccess(api, "team"), job)
        finally:
            await runner.cleanup()

    return asyncio.run(ask()), len(requests)


@pytest.mark.parametrize("version", ["v1beta2", "v1beta1"])
def test_the_place_is_counted_from_one(version: str) -> None:
    """The place is read from the LocalQueue and the ClusterQueue, in any served version."""
    told, _ = asked(waiting(), ["other", "digits-0a1b2c3d"], version)
    assert told == "place 2 in LocalQueue research, 3 in its ClusterQueue"


def test_a_place_behind_a_thousand() -> None:
    """Later pages of the answer are read."""
    told, requests = asked(waiting(), [f"job-{n}" for n in range(PAGE)] + ["digits-0a1b2c3d"])
    assert (told.split(",")[0], requests) == (f"place {PAGE + 1} in LocalQueue research", 2)


def test_a_group_of_pods_has_a_place_too() -> None:
    """A PodGroup's Workload, which Kueue creates, has the group's name."""
    told, _ = asked(waiting("Pending", "PodGroup"), ["digits-0a1b2c3d-1"])
    assert told == "place 1 in LocalQueue research, 1 in its ClusterQueue"


@pytest.mark.parametrize("status", [403, 404])
def test_who_may_not_ask_is_told_the_rest(status: int) -> None:
    """A missing right, or a Kueue without that API, is no error of `dtj why`."""
    assert asked(waiting(), ["digits-0a1b2c3d"], status=status)[0] == ""


def test_nobody_asks_for_a_job_that_does_not_wait() -> None:
    """A running job, and one that waits without a queue, have no place."""
    assert asked(waiting("Running"), ["digits-0a1b2c3d"]) == ("", 0)
    assert asked(waiting("Queued", ""), ["digits-0a1b2c3d"]) == ("", 0)


def test_why_tells_the_place_below_what_the_job_waits_for() -> None:
    """The place is printed in a separate line."""
    assert list(explain_job(waiting(), [], [], place="place 2 in LocalQueue research"))[1] == (
        "    place 2 in LocalQueue research"
    )
