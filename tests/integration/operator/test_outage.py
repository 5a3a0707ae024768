"""The real API server is killed under a running job and started again: the same attempt ends well."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from pathlib import Path

import pytest
from support.apiserver import ControlPlane
from support.cluster import real_cluster
from support.jobs import state
from support.kubelet import Kubelet, ScriptedRuntime
from support.operating import start_operator, stop_operator
from support.scenario import Clock, Scenario, open_scenario

from ringtrain_client.jobs.following import Json, changes_of, state_of
from ringtrain_operator.cluster.api.client import ApiClient
from ringtrain_operator.cluster.api.connection import ApiConnection
from ringtrain_operator.cluster.api.transport import ApiLimits
from ringtrain_operator.cluster.lease import LeaseTimes
from ringtrain_operator.cluster.operator import LeaseLost

pytestmark = pytest.mark.apiserver
TIMES = LeaseTimes(duration_s=8.0, renew_within_s=6.0, retry_s=0.5)  # half of what an operator has


async def test_a_short_outage_is_survived(control_plane: ControlPlane, tmp_path: Path) -> None:
    """After the outage, the same operator process and a waiting client see that the job has ended meanwhile."""
    async with open_scenario(partial(real_cluster, control_plane), tmp_path) as s:
        await s.submit()
        await s.until_running()
        at_once = ApiClient(s.cluster.connection, limits=ApiLimits(attempts=1))  # bridges nothing by itself
        jobs = changes_of(at_once, s.namespace, "digits")
        await anext(jobs)
        waits = asyncio.create_task(until_succeeded(jobs))
        outage = asyncio.create_task(control_plane.outage(for_s=1.0))
        s.succeed()
        await outage
        done = await s.until_state("Succeeded", "Failed")
        assert (state(done), done["status"]["attempt"]) == ("Succeeded", 1)
        async with at_once, asyncio.timeout(30):
            await waits


async def until_succeeded(jobs: AsyncGenerator[Json, None]) -> None:
    """As `dtj wait` does."""
    async with aclosing(jobs):
        while state_of(await anext(jobs)) != "Succeeded":
            pass


async def test_an_outage_longer_than_a_lease_ends_a_leader_and_no_job(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    """A leader that cannot renew its lease ends; the one that its kubelet starts instead goes on with the job."""
    async with real_cluster(control_plane) as c:
        ns, runtime, clock = await c.new_namespace(), ScriptedRuntime(), Clock()
        async with Kubelet(c.api, runtime, tmp_path, namespace=ns) as kubelet:
            s = Scenario(c, ns, runtime, kubelet, None, clock)
            # the admin's rights: those of the installed operator are to its own lease in its own namespace
            ends = asyncio.create_task(lead_again_and_again(c.connection, ns))
            await s.submit()
            await s.until_running()
            await control_plane.outage(for_s=TIMES.renew_within_s + 2.0)
            s.succeed()
            done = await s.until_state("Succeeded", "Failed")
            assert (state(done), done["status"]["attempt"]) == ("Succeeded", 1)
            ends.cancel()
            assert await ends >= 1


async def lead_again_and_again(connection: ApiConnection, namespace: str) -> int:
    """Run an operator, and another when it ends, as a kubelet would; returns how many lost the lease."""
    lost = 0
    while True:
        operator, running = await start_operator(
            connection,
            wait=False,
            namespaces=(namespace,),
            leader_election=True,
            lease_namespace=namespace,
            identity=f"operator-{lost}",
            lease_times=TIMES,
        )
        try:
            await asyncio.shield(running)
        except LeaseLost:
            lost += 1
        except asyncio.CancelledError:
            await stop_operator(operator, running)
            return lost
