"""Two replicas: one leads, the other waits, and a leader that was cut off writes no more."""

import asyncio

import pytest
from support.cluster import OpenCluster, fake_cluster, namespace_of
from support.jobs import job
from support.operating import start_operator, stop_operator

from ringtrain_operator.cluster.api.errors import NotLeader
from ringtrain_operator.cluster.api.resources import JOBS, LEASES, PODS
from ringtrain_operator.cluster.lease import LeaderLease, LeaseTimes

QUICK = LeaseTimes(duration_s=1.5, renew_within_s=1.0, retry_s=0.1)


async def test_the_lease_has_one_holder(open_cluster: OpenCluster) -> None:
    """The second waits while the first renews, and takes over at once when the first lets go."""
    async with namespace_of(open_cluster()) as (c, ns):
        first, second = (LeaderLease(c.api, ns, "operator", who, QUICK) for who in ("first", "second"))
        await first.acquire()
        assert first.is_held()
        waiting = asyncio.create_task(second.acquire())
        keeping = asyncio.create_task(first.renew_until_lost())
        done, _ = await asyncio.wait((waiting,), timeout=3 * QUICK.duration_s)
        assert not done, "two leaders"
        keeping.cancel()
        await first.release()
        await waiting
        assert second.is_held()
        assert not first.is_held()
        lease = await c.api.get(LEASES, ns, "operator")
        assert lease["spec"]["holderIdentity"] == "second"


async def test_a_leader_that_cannot_renew_stops_before_another_may_start(open_cluster: OpenCluster) -> None:
    """It gives up within renew_within_s, which is shorter than what the others wait."""
    async with namespace_of(open_cluster()) as (c, ns):
        first, second = (LeaderLease(c.api, ns, "operator", who, QUICK) for who in ("first", "second"))
        await first.acquire()
        # nobody renews for the first from here on
        c.api.fence(lambda: True)
        await second.acquire()
        assert not first.is_held()
        await first.renew_until_lost()
        assert not first.is_held()


async def test_a_fenced_client_sends_no_write(open_cluster: OpenCluster) -> None:
    """Reads pass, writes raise NotLeader and nothing reaches the server."""
    async with namespace_of(open_cluster()) as (c, ns):
        c.api.fence(lambda: False)
        assert await c.api.select(PODS, ns) == []
        with pytest.raises(NotLeader):
            await c.api.create(JOBS, ns, job())
        c.api.fence(lambda: True)
        assert await c.api.select(JOBS, ns) == []


async def test_the_standby_takes_over_from_a_leader_that_died() -> None:
    """Only one of two operators works; when it is cut off, the other goes on with the same job."""
    async with namespace_of(fake_cluster()) as (c, ns):
        election = {"leader_election": True, "lease_namespace": ns}
        leader, leading = await start_operator(c.connection, identity="a", lease_times=QUICK, **election)
        standby, waiting = await start_operator(c.connection, identity="b", lease_times=QUICK, wait=False, **election)
        await c.api.create(JOBS, ns, job("one"))
        await c.until_exists(PODS, ns, "one-launcher")
        assert not standby.watching.is_set()
        leader.api.fence(lambda: False)
        leading.cancel()
        await asyncio.wait((leading,))
        await standby.watching.wait()
        await c.api.create(JOBS, ns, job("two"))
        await c.until_exists(PODS, ns, "two-launcher")
        await stop_operator(standby, waiting)
