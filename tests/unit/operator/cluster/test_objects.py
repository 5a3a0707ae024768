"""The operator's record of a job's objects other than pods."""

import asyncio

import pytest
from support import jobs
from support.fakeapi import FakeApi

from ringtrain_operator.build.names import ObjectRef
from ringtrain_operator.cluster.api.client import ApiClient
from ringtrain_operator.cluster.api.connection import ApiConnection
from ringtrain_operator.cluster.api.resources import COMPANIONS, JOBS, NETWORK_POLICIES
from ringtrain_operator.cluster.apply import apply_plan
from ringtrain_operator.cluster.memory import ReconcileMemory
from ringtrain_operator.cluster.observe import read_objects
from ringtrain_operator.cluster.versions import ResourceVersions
from ringtrain_operator.plan.result import Plan

POLICIES = NETWORK_POLICIES.plural
POLICY = ObjectRef("NetworkPolicy", "digits")


@pytest.mark.parametrize("makes", [False, True], ids=["another-look", "what-is-missing-is-made"])
async def test_one_that_is_deleted_during_a_look_is_looked_for_again(makes: bool) -> None:
    """Its deletion may be told before the look ends, which has seen it; nothing else would ever tell of it. What
    is made after the look is all that need not be read."""
    async with FakeApi() as fake, ApiClient(ApiConnection(fake.url)) as api:
        job = await api.create(JOBS, "default", jobs.job())
        owner = {"kind": "DistributedTrainingJob", "uid": job["metadata"]["uid"], "controller": True}
        meta = {"name": "digits", "ownerReferences": [{"apiVersion": JOBS.api_version, "name": "digits", **owner}]}
        for resource in COMPANIONS:
            made = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta}
            await api.create(resource, "default", made)
        memory, held = ReconcileMemory(), asyncio.Event()
        fault = fake.faults.add("GET", "services", 0, hold=held)
        look = asyncio.create_task(read_objects(api, job, memory))
        async with asyncio.timeout(60):
            while not fault.fired or not any(c.plural == POLICIES and c.verb == "get" for c in fake.calls):
                await asyncio.sleep(0)
            await api.delete(NETWORK_POLICIES, "default", "digits")
            memory.object_deleted(POLICY)
            held.set()
            await look
            if makes:
                await apply_plan(
                    ResourceVersions(api), job, Plan(create=(made | {"metadata": meta | {"name": "x"}},)), memory
                )
            await read_objects(api, job, memory)
        assert POLICY not in memory.owned
        assert len(memory.owned) == len(COMPANIONS) - 1
