"""Objects that a job owns in addition to its pods, after somebody deletes them."""

from pathlib import Path

from support.cluster import OpenCluster, fake_cluster
from support.operating import running_operator
from support.scenario import Scenario, open_scenario, running_job

from ringtrain_operator.cluster.api.resources import (
    NETWORK_POLICIES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    ApiResource,
)
from ringtrain_operator.plan.objects import LAUNCHER_ENDS_S

NAMED_ALIKE = (SERVICES, SERVICE_ACCOUNTS, NETWORK_POLICIES)


async def secret_name(s: Scenario) -> str:
    """The name of the job's Secret."""
    uid: str = (await s.job())["metadata"]["uid"]
    return f"{s.name}-{uid[:8]}"


async def replaced(s: Scenario, resource: ApiResource, name: str) -> str:
    """Delete the object, and return its uid."""
    found = await s.cluster.api.get(resource, s.namespace, name)
    await s.cluster.api.delete(resource, s.namespace, name)
    return str(found["metadata"]["uid"])


async def test_objects_that_are_deleted_under_a_running_job_are_made_again(
    open_cluster: OpenCluster, tmp_path: Path
) -> None:
    """As soon as the watch tells it: other pods find the job by its Service, and its policy guards its ports."""
    async with running_job(open_cluster, tmp_path) as s:
        for resource in NAMED_ALIKE:
            uid = await replaced(s, resource, s.name)
            await s.cluster.until(
                resource, s.namespace, s.name, lambda o, uid=uid: o is not None and o["metadata"]["uid"] != uid
            )
        assert (await s.job())["status"]["attempt"] == 1
        await s.end_well()


async def test_a_restart_has_all_that_its_pods_need(open_cluster: OpenCluster, tmp_path: Path) -> None:
    """Deleted while no pod is there, also the Secret, which nobody may watch: the next attempt has it new."""
    async with running_job(open_cluster, tmp_path) as s:
        secret = await secret_name(s)
        uid = await replaced(s, SECRETS, secret)
        s.fail(code=3)
        await s.until(lambda j: j["status"].get("attempt") == 2)
        for resource in NAMED_ALIKE:
            await s.cluster.api.delete(resource, s.namespace, s.name)
        await s.until_running(attempt=2, after_s=30)
        for resource in NAMED_ALIKE:
            await s.cluster.until_exists(resource, s.namespace, s.name)
        made = await s.cluster.api.get(SECRETS, s.namespace, secret)
        assert made["metadata"]["uid"] != uid
        await s.end_well(attempt=2)


async def test_what_was_refused_is_looked_at_anew(tmp_path: Path) -> None:
    """A pod that was refused may lack what somebody has deleted unseen: that is read before it is tried again."""
    async with open_scenario(fake_cluster, tmp_path) as s:
        refused = s.cluster.fake.faults.add("POST", "pods", 403, after=2)
        await s.submit()
        await s.until_running()
        assert refused.fired
        read = {c.plural for c in s.cluster.fake.calls if c.method == "GET" and c.agent == "ringtrain-operator"}
        assert {resource.plural for resource in NAMED_ALIKE} <= read


async def test_pods_that_are_refused_again_and_again_cost_one_secret(tmp_path: Path) -> None:
    """A quota may refuse pods for hours: no try leaves another Secret behind."""
    async with open_scenario(fake_cluster, tmp_path) as s:
        refused = s.cluster.fake.faults.add("POST", "pods", 403, times=12)
        await s.submit()
        await s.until_running()
        assert refused.fired == 12
        assert [o["metadata"]["name"] for o in await s.cluster.api.select(SECRETS, s.namespace)] == [
            await secret_name(s)
        ]


async def test_a_job_that_restarts_is_suspended_and_resumed_has_one_secret(
    open_cluster: OpenCluster, tmp_path: Path
) -> None:
    """A resumed job mounts the Secret of its first attempt; also with an operator that did not make it."""
    async with running_job(open_cluster, tmp_path) as s:
        s.fail(code=3)
        await s.until(lambda j: j["status"].get("attempt") == 2)
        await s.until_running(attempt=2, after_s=30)
        await s.suspend()
        s.skip(LAUNCHER_ENDS_S)
        await s.until_pods(0)
        s.operator.stop()
        async with running_operator(s.cluster.operator_connection, s.clock, namespaces=(s.namespace,)):
            await s.change({"runPolicy": {"suspend": False}})
            await s.until_running(attempt=3)
            found = await s.cluster.api.select(SECRETS, s.namespace)
            assert [o["metadata"]["name"] for o in found] == [await secret_name(s)]
            await s.end_well(attempt=3)
