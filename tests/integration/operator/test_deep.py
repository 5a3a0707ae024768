"""A job that is nested deeper than Python decodes costs only itself, on a real API server."""

import json

import aiohttp
import pytest
from support.apiserver import ControlPlane
from support.cluster import Cluster, Json, namespace_of, real_cluster
from support.jobs import condition, job
from support.operating import running_operator

from ringtrain_operator.cluster.api.resources import JOBS, PODS

pytestmark = pytest.mark.apiserver

# Python decodes about 1,000 levels and copies about 300. The API server stores 10,000, in a time that grows with the
# square of the levels.
LEVELS = (150, 700, 2_000)


async def create_deep(cluster: Cluster, namespace: str, name: str, levels: int) -> None:
    """A job whose template has so many levels in a field that the CRD leaves to the operator's own check."""
    body: Json = job(name)
    body["spec"]["worker"]["template"]["spec"]["affinity"] = {}
    deep = '{"a":' * levels + "1" + "}" * levels
    text = json.dumps(body).replace('"affinity": {}', f'"affinity": {deep}')
    connection = cluster.connection
    headers = {**connection.headers(), "Content-Type": "application/json"}
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=connection.tls or True)) as session,
        session.post(connection.server + JOBS.path(namespace), data=text, headers=headers) as answer,
    ):
        assert answer.status == 201, await answer.text()


async def until_refused(cluster: Cluster, namespace: str, name: str) -> None:
    """Return when the job's condition says what is wrong with it."""
    found = await cluster.until(
        JOBS, namespace, name, lambda j: condition(j or {}, "Accepted").get("status") == "False"
    )
    assert "nested more than 100 levels" in condition(found, "Accepted")["message"]


async def test_a_deep_job_costs_only_itself(control_plane: ControlPlane) -> None:
    """Whether it was there before the operator or comes while it watches; and it can be listed, and deleted."""
    async with namespace_of(real_cluster(control_plane)) as (c, ns):
        for levels in LEVELS:
            await create_deep(c, ns, f"before-{levels}", levels)
        async with running_operator(c.operator_connection):
            await c.api.create(JOBS, ns, job("one"))
            await c.until_exists(PODS, ns, "one-launcher")
            for levels in LEVELS:
                await create_deep(c, ns, f"meanwhile-{levels}", levels)
            await c.api.create(JOBS, ns, job("two"))
            await c.until_exists(PODS, ns, "two-launcher")
            for levels in LEVELS:
                await until_refused(c, ns, f"before-{levels}")
                await until_refused(c, ns, f"meanwhile-{levels}")
        assert len(await c.api.select(JOBS, ns)) == 2 + 2 * len(LEVELS)
        for obj in await c.api.select(JOBS, ns):
            await c.api.delete(JOBS, ns, obj["metadata"]["name"])
