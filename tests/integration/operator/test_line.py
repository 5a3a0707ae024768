"""The operator's own line: jobs that can't be placed, and gangs behind them. Pods are placed one by one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from support.cluster import OpenCluster
from support.gangschedulers import placing_pod_by_pod
from support.jobs import job
from support.kubelet import Kubelet, ScriptedRuntime
from support.operating import running_operator
from support.scenario import Clock, Scenario

from ringtrain_client.jobs.causes import explain_job
from ringtrain_operator.cluster.api.resources import JOBS

GPU = "nvidia.com/gpu"


@asynccontextmanager
async def open_arena(open_cluster: OpenCluster, folder: Path) -> AsyncIterator[Scenario]:
    """Two nodes of four devices each, and an operator of two namespaces."""
    runtime, clock = ScriptedRuntime(), Clock()
    async with open_cluster() as cluster:
        both = await cluster.new_namespace(), await cluster.new_namespace()
        nodes = tuple(f"{both[0]}-{node}" for node in "ab")
        async with (
            Kubelet(cluster.api, runtime, folder, nodes=nodes, capacity={GPU: 4}, schedules=False) as kubelet,
            placing_pod_by_pod(cluster.api, both),
            running_operator(cluster.operator_connection, clock, namespaces=both) as operator,
        ):
            yield Scenario(cluster, both[0], runtime, kubelet, operator, clock)


async def submit(s: Scenario, name: str, workers: int, devices: int, **pod: Any) -> Scenario:
    """The scenario about a job that is older than the next one; `pod`: fields of its worker's template."""
    wanted = job(name, workers=workers)
    wanted["spec"]["worker"]["devices"] = {GPU: devices} if devices else {}
    wanted["spec"]["worker"]["template"]["spec"].update(pod)
    made = await s.cluster.api.create(JOBS, s.namespace, wanted)
    while datetime.now(UTC) < datetime.fromisoformat(made["metadata"]["creationTimestamp"]) + timedelta(seconds=1):
        await s.cluster.pause()  # jobs of one second have no order that a test could know
    return replace(s, name=name)


async def test_a_job_that_no_node_takes_keeps_no_gang_waiting(open_cluster: OpenCluster, tmp_path: Path) -> None:
    """It is the oldest, in another namespace, and wants no device: gangs that each need all devices run one after
    the other, with the operator's clock as it is. Whoever waits is told who is ahead."""
    async with open_arena(open_cluster, tmp_path) as s:
        elsewhere = replace(s, namespace=s.operator.config.namespaces[1])
        lost = await submit(elsewhere, "lost", 1, 0, nodeSelector={"disk": "sdd"})
        await lost.until_condition("Running", "False", "didn't match Pod's node affinity/selector")
        first = await submit(s, "first", 4, 2)
        await first.until_running(workers=4)
        second = await submit(s, "second", 4, 2)
        third = await submit(s, "third", 4, 2)
        await second.until_condition("Running", "False", "Insufficient nvidia.com/gpu")
        ahead = f"directly ahead of it in the queue: {s.namespace}/second"
        waits = await third.until_condition("Running", "False", ahead)
        assert waits["reason"] == "Queued"
        assert waits["message"] in "\n".join(explain_job(await third.job(), [], []))
        first.succeed(workers=4)
        await second.until_running(workers=4)
        second.succeed(workers=4)
        await third.until_running(attempt=2, workers=4)
        assert (await lost.job())["status"]["attempt"] == 1


async def test_what_the_first_can_not_use_goes_to_a_gang_behind_it(open_cluster: OpenCluster, tmp_path: Path) -> None:
    """The first wants a whole node, and none is free: two gangs that want one device of each node take turns."""
    async with open_arena(open_cluster, tmp_path) as s:
        long = await submit(s, "long", 2, 3)
        await long.until_running()
        large = await submit(s, "large", 1, 4)
        await large.until_condition("Running", "False", "Insufficient nvidia.com/gpu")
        one = await submit(s, "one", 2, 1)
        await one.until_running()
        two = await submit(s, "two", 2, 1)
        await two.until_condition("Running", "False", f"ahead of it in the queue: {s.namespace}/large")
        one.succeed()
        await two.until_running(attempt=2)
        assert (await large.job())["status"]["attempt"] == 1
