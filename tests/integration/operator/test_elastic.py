"""Elastic jobs: workers that are lost, that join and that leave, and nothing else restarts."""

import functools
from pathlib import Path
from typing import Any

import pytest
from integration.operator.test_disruptions import take_away
from support.apiserver import ControlPlane
from support.cluster import OpenCluster, real_cluster
from support.jobs import condition
from support.scenario import Scenario, open_scenario, running_job

from ringtrain_operator import contract
from ringtrain_operator.cluster.api.errors import Unprocessable
from ringtrain_operator.cluster.api.resources import JOBS, PODS

ELASTIC = {"minReplicas": 1, "maxReplicas": 4}


async def until_seen(s: Scenario, workers: int) -> None:
    """Return when the operator has noted that the pods of all workers are there."""

    def seen(job: dict[str, Any]) -> bool:
        notes = ((job.get("status") or {}).get("ledger") or {}).get("incarnations") or {}
        return notes.get("present") == [True] * workers

    await s.until_running(workers=workers)
    await s.until(seen)


async def until_incarnation(s: Scenario, name: str, number: int) -> None:
    """Return when the worker's pod of this number runs."""

    def runs(pod: dict[str, Any] | None) -> bool:
        if pod is None or pod["metadata"]["labels"][contract.LABEL_INCARNATION] != str(number):
            return False
        return bool(pod["status"].get("phase") == "Running")

    await s.cluster.until(PODS, s.namespace, name, runs)


@pytest.mark.parametrize("how", ["evicted", "node-under-pressure", "drained", "deleted"])
async def test_a_worker_that_is_taken_away_is_made_anew(open_cluster: OpenCluster, tmp_path: Path, how: str) -> None:
    """Within the attempt, and no other pod is touched; the job ends well."""
    nodes = ("node-a", "node-b", "node-c")  # the launcher is on another than the victim
    async with open_scenario(open_cluster, tmp_path, nodes=nodes) as s:
        await s.submit(elastic=ELASTIC)
        await s.until_running()
        async with s.launcher_says(elastic={"formation": 1, "ranks": 2}) as answer:
            await until_seen(s, 2)
            before = await s.uids()
            await take_away(s, how)
            await until_incarnation(s, "digits-worker-1", 2)
            answer["elastic"] |= {"formation": 2, "lostSteps": 1, "recoveries": 1, "lastRecoverySeconds": 0.5}
            job = await s.until(lambda j: j["status"]["elastic"].get("recoveries") == 1)
        after = await s.uids()
        assert {name for name in after if after[name] != before[name]} == {"digits-worker-1"}
        status = job["status"]
        assert (status["attempt"], status["restarts"], status["disruptions"]) == (1, 0, 0)
        assert (status["elastic"]["lostWorkers"], status["elastic"]["lostSteps"]) == (1, 1)
        await s.end_well()
        assert {"WorkerLost", "FormationChanged"} <= await s.reasons()


@pytest.mark.parametrize("refusal", [None, (401, "who?"), (409, "not elastic"), (422, "expected 1 to 4 ranks")])
async def test_a_launcher_that_does_not_take_the_number_is_told_again(
    open_cluster: OpenCluster, tmp_path: Path, refusal: tuple[int, str] | None
) -> None:
    """Degraded shows the launcher's refusal until it accepts the number of ranks; a failed connection is not shown."""
    async with running_job(open_cluster, tmp_path, elastic=ELASTIC) as s:
        elastic = {"formation": 1, "ranks": 2}
        async with s.launcher_says(elastic=elastic, refusal=refusal) as answer:
            if refusal:
                code, text = refusal
                await s.until_condition("Degraded", "True", says=f"answered {code}: {text}")
                assert "ScaleRefused" in str((await s.job())["status"])
            else:
                await s.until_condition("Degraded", "False", says="2 ranks")
            assert "wanted" not in elastic
            del answer["refusal"]
            await until_told(s, answer, 2)
            await s.until_condition("Degraded", "False", says="2 ranks")


@pytest.mark.apiserver
async def test_scaled_through_the_scale_subresource(control_plane: ControlPlane, tmp_path: Path) -> None:
    """As `kubectl scale` and autoscalers do: up and down; what is out of bounds is refused with the bounds."""
    async with open_scenario(functools.partial(real_cluster, control_plane), tmp_path) as s:
        await s.submit(elastic=ELASTIC)
        await s.until_running()

        async def scale(replicas: int) -> None:
            patch = {"spec": {"replicas": replicas}}
            await s.cluster.api.patch(JOBS, s.namespace, "digits", patch, subresource="scale")

        async with s.launcher_says(elastic={"formation": 1, "ranks": 2}) as answer:
            await until_seen(s, 2)
            await scale(4)
            await until_told(s, answer, 4)
            await until_seen(s, 4)
            for beyond in (0, 5):
                with pytest.raises(Unprocessable, match=r"elastic|replicas"):
                    await scale(beyond)
            await scale(1)
            await until_told(s, answer, 1)
            await s.until_pods(2)
        assert (await s.job())["status"]["attempt"] == 1


async def until_told(s: Scenario, answer: dict[str, Any], workers: int) -> None:
    """Return when the launcher was told how many workers are wanted."""
    while answer["elastic"].get("wanted") != workers:
        await s.cluster.pause()


async def test_a_launcher_whose_process_came_back_is_told_again(open_cluster: OpenCluster, tmp_path: Path) -> None:
    """It is killed in its pod, and started there again: same pods, same attempt, and it learns what is wanted."""
    async with running_job(open_cluster, tmp_path, elastic=ELASTIC) as s:
        async with s.launcher_says(elastic={"formation": 1, "ranks": 2}, startTime=1000.0) as answer:
            await until_seen(s, 2)
            await until_told(s, answer, 2)
        before = await s.uids()
        s.runtime.finish("digits-launcher", 137)

        def restarted(pod: dict[str, Any] | None) -> bool:
            (status,) = (pod or {})["status"]["containerStatuses"]
            return status["restartCount"] == 1 and "running" in status["state"]

        await s.cluster.until(PODS, s.namespace, "digits-launcher", restarted)
        async with s.launcher_says(elastic={"formation": 0, "ranks": 0}, startTime=2000.0) as answer:
            await until_told(s, answer, 2)
            answer["elastic"] |= {"formation": 2, "ranks": 2}
            job = await s.until(lambda j: j["status"]["elastic"]["formation"] == 2)
        assert await s.uids() == before
        assert (job["status"]["attempt"], condition(job, "Running")["status"]) == (1, "True")
