"""Jobs that compete for devices: the real control plane and kube-scheduler, and nodes that run pods by script."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.apiserver import ControlPlane, why_unavailable
from support.cluster import WAIT_S
from support.gangschedulers import groups_of
from support.rounds import NAMESPACE, Arena, open_arena, scheduling_plane
from support.scenario import Scenario

from ringtrain_client.jobs.causes import explain_job
from ringtrain_operator.cluster.api.resources import COMPANIONS, JOBS, PODS, SECRETS
from ringtrain_operator.plan.objects import LAUNCHER_ENDS_S

pytestmark = pytest.mark.apiserver
Json = dict[str, Any]
# Kubernetes' own is the real one; of the other two the API is there, and a stand-in places their gangs.
GANGS = ("Kubernetes", "Coscheduling", "Volcano")
ROUNDS = 2


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One with a scheduler; skips with the way to get its binaries."""
    if reason := why_unavailable("kube-scheduler"):
        pytest.skip(reason)
    with scheduling_plane(tmp_path_factory.mktemp("scheduling-plane")) as found:
        yield found


async def submit(arena: Arena, name: str, workers: int, **spec: Any) -> Scenario:
    """Create a job whose workers have two devices each; the scenario that is about it."""
    await arena.cluster.api.create(JOBS, arena.namespace, arena.job(name, workers, 2, **spec))
    return replace(arena.scenario, name=name)


async def until_groups(arena: Arena, names: list[str]) -> list[Json]:
    """The arena's PodGroups once they are those of these jobs and attempts (`digits-1`), and no other."""
    async with asyncio.timeout(WAIT_S):
        while True:
            groups = await arena.cluster.api.select(groups_of(arena.gang), arena.namespace)
            parts = (group["metadata"]["name"].split("-") for group in groups)
            if sorted(f"{job}-{attempt}" for job, _, attempt in parts) == names:
                return groups
            await arena.cluster.pause()


async def test_a_deadlock_of_jobs_that_are_placed_pod_by_pod_ends_by_itself(
    plane: ControlPlane, tmp_path: Path
) -> None:
    """Four jobs of 4 workers with 2 devices each on 8 devices: one is whole within 30 s, and all run in turn."""
    async with open_arena(plane, tmp_path) as arena:
        result = await arena.round(jobs=4, workers=4, devices=2)
    assert result.first_whole_s < 30
    assert (result.restarts, result.disruptions) == (0, 0)


@pytest.mark.parametrize("gang", GANGS)
async def test_of_two_gangs_that_do_not_fit_together_one_runs(plane: ControlPlane, tmp_path: Path, gang: str) -> None:
    """Each needs 60 % of the devices: both run, one after the other, and nothing is counted or left behind."""
    async with open_arena(plane, tmp_path, devices=5, gang=gang) as arena:
        for _ in range(ROUNDS):
            result = await arena.round(jobs=2, workers=3, devices=2)
            assert (result.restarts, result.disruptions, result.groups) == (0, 0, 0)


@pytest.mark.parametrize("gang", GANGS)
async def test_a_gang_that_waits_says_why_and_holds_nothing(plane: ControlPlane, tmp_path: Path, gang: str) -> None:
    """Condition and `dtj why` have the scheduler's words; no pod has a node; it runs when the other has ended."""
    words = {"Kubernetes": "nodes are available", "Coscheduling": "find room", "Volcano": "find room"}
    async with open_arena(plane, tmp_path, devices=5, gang=gang) as arena:
        first = await submit(arena, "first", 3)
        await first.until_running(workers=3)
        second = await submit(arena, "second", 3)
        waits = await second.until_condition("Running", "False", words[gang])
        assert waits["reason"] == "Unschedulable"
        assert f"({gang})" in waits["message"]
        assert waits["message"] in "\n".join(explain_job(await second.until_state("Queued"), [], []))
        assert not [pod for pod in await second.pods() if pod["spec"].get("nodeName")]
        first.succeed(workers=3)
        await second.until_running(workers=3)


@pytest.mark.parametrize("gang", GANGS)
async def test_a_job_leaves_no_group_behind(plane: ControlPlane, tmp_path: Path, gang: str) -> None:
    """Scaled, suspended, resumed, finished, deleted: one group while there are to be pods, and then nothing."""
    async with open_arena(plane, tmp_path, gang=gang) as arena:
        s = await submit(arena, "digits", 3)
        await s.until_running(workers=3)
        await until_groups(arena, ["digits-1"])
        await s.change({"worker": {"replicas": 2}})
        await s.until_running(attempt=2)
        await until_groups(arena, ["digits-2"])
        await s.change({"runPolicy": {"suspend": True}})
        await s.until_state("Suspended")
        s.skip(LAUNCHER_ENDS_S)
        await s.until_pods(0)
        await until_groups(arena, [])
        await s.change({"runPolicy": {"suspend": False}})
        await s.until_running(attempt=3)
        await until_groups(arena, ["digits-3"])
        s.succeed(attempt=3)
        await s.until_state("Succeeded")
        await until_groups(arena, [])
        await s.cluster.api.delete(JOBS, s.namespace, s.name)
        running = await submit(arena, "running", 2)
        await running.until_running()
        await s.cluster.api.delete(JOBS, s.namespace, running.name)
        await until_groups(arena, [])
        await until_nothing(arena)


async def until_nothing(arena: Arena) -> None:
    """Return when the namespace has no object of any job."""
    async with asyncio.timeout(WAIT_S):
        for kind in (JOBS, PODS, SECRETS, *COMPANIONS):
            while await arena.cluster.api.select(kind, arena.namespace, labels="ringtrain.dev/job-name"):
                await arena.cluster.pause()


@pytest.mark.parametrize("gang", GANGS)
async def test_a_group_is_stored_as_it_was_meant(plane: ControlPlane, tmp_path: Path, gang: str) -> None:
    """The API keeps each field that is written, topology among them; the gang is placed."""
    topology = {"required": NAMESPACE}
    async with open_arena(plane, tmp_path, gang=gang) as arena:
        wanted = {"gang": gang, "topology": topology, **({"queue": "default"} if gang == "Volcano" else {})}
        near = await submit(arena, "near", 3, scheduling=wanted)
        (group,) = await until_groups(arena, ["near-1"])
        expected: dict[str, Json] = {
            "Kubernetes": {
                "schedulingPolicy": {"gang": {"minCount": 4}},
                "schedulingConstraints": {"topology": [{"key": NAMESPACE}]},
            },
            "Coscheduling": {"minMember": 4},
            "Volcano": {
                "minMember": 4,
                "queue": "default",
                "networkTopology": {"mode": "hard", "highestTierAllowed": 1},
            },
        }
        assert expected[gang].items() <= group["spec"].items()
        await near.until_running(workers=3)


@pytest.mark.parametrize("gang", GANGS)
async def test_an_elastic_gang_gets_a_lost_worker_back(plane: ControlPlane, tmp_path: Path, gang: str) -> None:
    """It begins when its fewest workers fit; a worker that is lost is placed again, as one of the same group."""
    elastic = {"minReplicas": 2, "maxReplicas": 4}
    async with open_arena(plane, tmp_path, gang=gang, devices=3) as arena:  # room for one worker a node
        s = await submit(arena, "digits", 3, elastic=elastic)
        placed = await until_placed(s, 3)
        await until_groups(arena, ["digits-1"])
        async with s.launcher_says(elastic={"formation": 1, "ranks": 2}):
            await s.until(lambda j: j["status"]["state"] == "Running")
            lost = next(name for name in placed if not name.endswith("launcher"))
            await s.cluster.api.delete(PODS, s.namespace, lost)
            await s.until(lambda j: j["status"]["elastic"]["lostWorkers"] == 1)
            await until_placed(s, 3)
        await until_groups(arena, ["digits-1"])


async def until_placed(s: Scenario, count: int) -> list[str]:
    """Names of the job's pods that run, once there are so many."""
    async with asyncio.timeout(WAIT_S):
        while True:
            pods = [pod for pod in await s.pods() if "deletionTimestamp" not in pod["metadata"]]
            found = [p["metadata"]["name"] for p in pods if p["status"].get("phase") == "Running"]
            if len(found) == count:
                return found
            await s.cluster.pause()
