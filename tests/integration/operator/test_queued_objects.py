"""Objects that a queued job owns in each state: one Workload while it requests or uses quota, no leftovers.

Its end, and the operator's death at each write, are in test_killed.py; the real Kueue is in test_kueue.py.
"""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from support.cluster import fake_cluster
from support.rendering import render
from support.scenario import Scenario, open_scenario
from support.standin import WORKLOADS, admitting

from ringtrain_operator.cluster.api.resources import JOBS
from ringtrain_operator.plan.objects import LAUNCHER_ENDS_S

QUEUED = {"scheduling": {"queue": "research"}}
COMPANIONS = ["NetworkPolicy", "Secret", "Service", "ServiceAccount"]


def scenario(folder: Path) -> AbstractAsyncContextManager[Scenario]:
    """An API server with Kueue's kind, nodes, and an operator that writes Workloads."""
    return open_scenario(lambda: fake_cluster(render("kueue.enabled=true")), folder, {"kueue": True, "namespaces": ()})


async def owned(s: Scenario) -> list[str]:
    """Kinds of what the job owns, once nothing changes any more."""
    assert s.cluster.fake is not None
    await s.cluster.until_quiet()
    found = s.cluster.fake.store.owned_by((await s.job())["metadata"]["uid"])
    return [obj.split()[0] for obj in found]


def running(workers: int) -> list[str]:
    """Return the kinds of the objects that a running job owns."""
    return sorted([*COMPANIONS, *["Pod"] * (workers + 1), "Workload"])


async def test_a_job_that_waits_owns_a_workload_and_a_suspended_one_nothing(tmp_path: Path) -> None:
    """Also where it is suspended while it waits, resumed, and scaled before its turn comes."""
    async with scenario(tmp_path) as s:
        await s.submit(**QUEUED)
        await s.until_state("Queued")
        assert await owned(s) == ["Workload"]
        await s.change({"runPolicy": {"suspend": True}})
        await s.until_state("Suspended")
        assert await owned(s) == []
        await s.change({"runPolicy": {"suspend": False}})
        await s.until_state("Queued")
        await s.change({"worker": {"replicas": 3}})
        assert await owned(s) == ["Workload"]
        async with admitting(s.cluster.api, s.namespace):
            await s.until_running(workers=3)
            assert await owned(s) == running(3)


async def test_a_job_that_runs_owns_one_workload_however_it_is_changed(tmp_path: Path) -> None:
    """Scaled, suspended, resumed and ended: its Workload is of its present size, and ends with it."""
    async with scenario(tmp_path) as s, admitting(s.cluster.api, s.namespace):
        await s.submit(**QUEUED)
        await s.until_running()
        assert await owned(s) == running(2)
        await s.change({"worker": {"replicas": 3}})
        await s.until_condition("Queued", "True", "Scaled")
        await s.until_running(attempt=2, workers=3, after_s=LAUNCHER_ENDS_S)
        assert await owned(s) == running(3)
        (workload,) = await s.cluster.api.select(WORKLOADS, s.namespace)
        assert {p["name"]: p["count"] for p in workload["spec"]["podSets"]}["workers"] == 3
        await s.change({"runPolicy": {"suspend": True}})
        await s.until_state("Suspended")
        s.skip(LAUNCHER_ENDS_S)
        await s.until_pods(0)
        assert await owned(s) == COMPANIONS
        await s.change({"runPolicy": {"suspend": False}})
        await s.until_running(attempt=3, workers=3)
        assert await owned(s) == running(3)
        s.succeed(attempt=3, workers=3)
        await s.until_state("Succeeded")
        assert (await owned(s)).count("Workload") == 1
        await s.cluster.api.delete(JOBS, s.namespace, s.name)
        await s.until_pods(0)
        await s.cluster.until_quiet()
        assert await s.cluster.api.select(WORKLOADS, s.namespace) == []
