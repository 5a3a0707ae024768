"""Pods that are taken away: the gang starts again, and backoffLimit is untouched."""

from pathlib import Path

import pytest
from support.cluster import Json, OpenCluster
from support.jobs import termination_message
from support.scenario import Scenario, running_job

from ringtrain_operator.cluster.api.resources import PODS


async def take_away(s: Scenario, how: str) -> None:
    """Let happen to worker 1 what `how` says."""
    victim = "digits-worker-1"
    match how:
        case "evicted":
            await s.kubelet.evict(s.namespace, victim)
        case "preempted":
            await s.kubelet.evict(s.namespace, victim, "PreemptionByScheduler")
        case "node-under-pressure":
            await s.kubelet.press(s.namespace, victim)
        case "drained":
            pod = await s.cluster.api.get(PODS, s.namespace, victim)
            await s.kubelet.drain(pod["spec"]["nodeName"])
        case "deleted":
            await s.cluster.api.delete(PODS, s.namespace, victim)


@pytest.mark.parametrize("how", ["evicted", "preempted", "node-under-pressure", "drained", "deleted"])
async def test_a_pod_that_is_taken_away_restarts_the_gang_uncounted(
    open_cluster: OpenCluster, tmp_path: Path, how: str
) -> None:
    """That is not the job's fault: a new attempt of all pods, although not one failure is allowed."""
    async with running_job(open_cluster, tmp_path, runPolicy={"backoffLimit": 0}) as s:
        async with s.launcher_says():
            await s.until_state("Running")
            await take_away(s, how)
            again = await s.until(lambda j: j["status"].get("attempt") == 2)
        assert (again["status"]["restarts"], again["status"]["disruptions"]) == (0, 1)
        await s.until_running(attempt=2, after_s=30)
        await s.end_well(attempt=2)


async def test_a_node_that_goes_without_a_word_is_not_billed_to_the_job(
    open_cluster: OpenCluster, tmp_path: Path
) -> None:
    """The launcher gives up an agent before the control plane knows of its node: the job has no restart left, and
    goes on when the node is known to be lost."""
    async with running_job(open_cluster, tmp_path, runPolicy={"backoffLimit": 0}) as s:
        node = "node-a" if "digits-launcher" in s.kubelet.pods_on("node-b") else "node-b"
        victim = s.kubelet.pods_on(node)[0]
        s.kubelet.go_silent(node)
        lost = {"rank": None, "reason": "AgentLost", "pod": victim, "message": "no sign of life for 60 s"}
        s.runtime.finish("digits-launcher", 75, termination_message("Failed", 1, 2, **lost))
        await s.cluster.until(PODS, s.namespace, "digits-launcher", has_ended)
        s.skip(15)
        status = (await s.until(lambda j: j["status"].get("attempt") == 2))["status"]
        # Its pod may have overstayed its grace by then, which is known to be a disruption without the node, too.
        assert (status["restarts"], status["disruptions"]) in ((0, 0), (0, 1))
        await s.kubelet.lose_node(node)
        s.skip(60)
        status = (await s.until(lambda j: j["status"].get("disruptions") == 1))["status"]
        assert status["restarts"] == 0
        await s.until_running(attempt=2, after_s=120)


def has_ended(pod: Json | None) -> bool:
    """Whether the launcher's container has said how it ended."""
    return ((pod or {}).get("status") or {}).get("phase") == "Failed"


async def test_pods_of_a_dead_node_are_replaced(open_cluster: OpenCluster, tmp_path: Path) -> None:
    """A pod that stays Terminating on a node that is gone is deleted by force, and the gang starts again."""
    async with running_job(open_cluster, tmp_path, runPolicy={"backoffLimit": 0}) as s:
        victims = s.kubelet.pods_on("node-b")
        await s.kubelet.lose_node("node-b")
        for name in victims:
            await s.kubelet.mark_disrupted(s.namespace, name, "DeletionByTaintManager")
            await s.cluster.api.delete(PODS, s.namespace, name)
        await s.until(lambda j: j["status"].get("attempt") == 2)
        assert (await s.job())["status"]["restarts"] == 0
        await s.until_running(attempt=2, after_s=120)
        assert {p["spec"]["nodeName"] for p in await s.pods()} == {"node-a"}
