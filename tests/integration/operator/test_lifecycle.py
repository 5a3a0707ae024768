"""A job's life under the operator, which has its own ServiceAccount's rights; nodes run containers by script."""

import time
from pathlib import Path
from typing import Any

from support.cluster import OpenCluster
from support.jobs import condition, job, state
from support.scenario import open_scenario, running_job

from ringtrain_operator.cluster.api.resources import (
    JOBS,
    NETWORK_POLICIES,
    PODS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
)
from ringtrain_operator.plan.objects import LAUNCHER_ENDS_S


async def test_a_job_runs_to_succeeded(open_cluster: OpenCluster, tmp_path: Path) -> None:
    """Launcher and workers are made and run; when all end well, the job has succeeded, and says so for ever."""
    async with running_job(open_cluster, tmp_path) as s:
        s.succeed()
        done = await s.until_state("Succeeded", "Failed")
        assert state(done) == "Succeeded", done["status"]
        assert "finalizers" not in done["metadata"]
        assert "annotations" not in done["metadata"]
        await s.change({"worker": {"replicas": 3}})
        s.skip(3600)
        assert state(await s.until(lambda j: j["metadata"]["generation"] == 2)) == "Succeeded"


async def test_all_that_belongs_to_a_job_goes_with_it(open_cluster: OpenCluster, tmp_path: Path) -> None:
    """A deleted job takes its pods, Service, account, NetworkPolicy and Secret along."""
    async with open_scenario(open_cluster, tmp_path) as s:
        made = await s.submit()
        await s.until_running()
        secret = f"digits-{made['metadata']['uid'][:8]}"
        for resource, name in [
            (SERVICES, "digits"),
            (SERVICE_ACCOUNTS, "digits"),
            (NETWORK_POLICIES, "digits"),
            (SECRETS, secret),
        ]:
            await s.cluster.until_exists(resource, s.namespace, name)
        await s.cluster.api.delete(JOBS, s.namespace, "digits")
        await s.cluster.until_gone(SECRETS, s.namespace, secret)
        await s.cluster.until_gone(SERVICES, s.namespace, "digits")
        await s.until_pods(0)


async def test_a_suspended_job_has_no_pods(open_cluster: OpenCluster, tmp_path: Path) -> None:
    """Created suspended nothing runs; resumed it runs; suspended again its pods go; resumed it goes on."""
    async with open_scenario(open_cluster, tmp_path) as s:
        await s.submit(runPolicy={"suspend": True})
        await s.until_state("Suspended")
        assert await s.pods() == []
        await s.change({"runPolicy": {"suspend": False}})
        await s.until_running()
        await s.suspend()
        s.skip(LAUNCHER_ENDS_S)  # this launcher does not end by itself
        await s.until_pods(0)
        await s.change({"runPolicy": {"suspend": False}})
        resumed = await s.until(lambda j: j["status"].get("attempt") == 2)
        assert resumed["status"]["restarts"] == 0
        await s.until_running(attempt=2)


async def test_worker_0_has_its_own_template_in_each_attempt(open_cluster: OpenCluster, tmp_path: Path) -> None:
    """Its pod is made from rank0Template again when somebody deletes it and the gang restarts."""
    main = {"name": "first", "image": "first:1", "command": ["first"]}
    worker = {**job()["spec"]["worker"], "rank0Template": {"spec": {"containers": [main]}}}
    async with running_job(open_cluster, tmp_path, worker=worker) as s:
        for attempt in (1, 2):
            await s.until_running(attempt=attempt)
            images = {pod["metadata"]["name"]: pod["spec"]["containers"][0]["image"] for pod in await s.pods()}
            assert images["digits-worker-0"] == "first:1"
            assert images["digits-worker-1"] == "train:1"
            if attempt == 1:
                await s.cluster.api.delete(PODS, s.namespace, "digits-worker-0")
                await s.until(lambda j: j["status"].get("attempt") == 2)


async def test_a_pod_that_will_not_end_is_killed(open_cluster: OpenCluster, tmp_path: Path) -> None:
    """A container that ignores SIGTERM has its grace period, then it is gone, and the suspension is complete."""
    template = {"spec": {**job()["spec"]["worker"]["template"]["spec"], "terminationGracePeriodSeconds": 1}}
    async with running_job(open_cluster, tmp_path, worker={"replicas": 2, "template": template}) as s:
        stubborn = s.runtime.containers["digits-worker-0"]
        stubborn.stubborn = True
        await s.suspend()
        s.skip(LAUNCHER_ENDS_S)  # this launcher does not end by itself
        await s.until_pods(0)
        assert stubborn.ended.result().code == 137


async def test_a_failed_gang_restarts_within_its_limit(open_cluster: OpenCluster, tmp_path: Path) -> None:
    """Attempt 1 fails and attempt 2 follows; when that fails too, the limit of one is used up, for good.

    The first failed rank stays in the status when its pod is gone.
    """
    async with running_job(open_cluster, tmp_path, runPolicy={"backoffLimit": 1, "cleanPodPolicy": "All"}) as s:
        s.fail(code=3)
        again = await s.until(lambda j: j["status"].get("restarts") == 1)
        failure = again["status"]["failure"]
        assert (failure["rank"], failure["exitCode"], failure["pod"]) == (1, 3, "digits-worker-1")
        await s.until_running(attempt=2, after_s=30)
        assert (await s.job())["status"]["failure"] == failure
        s.fail(code=4, attempt=2)
        await s.until_state("Failed", "Succeeded")
        await s.until_pods(0)
        await s.change({"runPolicy": {"backoffLimit": 9}, "worker": {"replicas": 3}})
        s.skip(3600)
        done = await s.until(lambda j: j["metadata"]["generation"] == 2)
        assert state(done) == "Failed"
        last = done["status"]["failure"]
        assert (last["rank"], last["exitCode"], last["pod"], last["node"]) == (1, 4, "digits-worker-1", "node-b")
        assert last["logTail"] == ["the last line"]


async def test_a_gang_that_makes_no_step_is_restarted(open_cluster: OpenCluster, tmp_path: Path) -> None:
    """progressDeadlineSeconds counts from the last step that the launcher told of, and the restart counts."""
    async with running_job(open_cluster, tmp_path, runPolicy={"progressDeadlineSeconds": 60, "backoffLimit": 1}) as s:
        async with s.launcher_says(progress={"step": 3, "totalSteps": 9}, lastProgressTime=time.time()):
            running = await s.until_state("Running")
            assert running["status"]["progress"]["step"] == 3
            assert running["status"]["progressSummary"] == "3/9 (33%)"
            s.skip(50)
            s.skip(12)
            again = await s.until(lambda j: j["status"].get("attempt") == 2)
        assert again["status"]["restarts"] == 1
        failure = again["status"]["failure"]
        assert failure["reason"] == "ProgressDeadlineExceeded"
        assert failure["message"] == "no step was reported for 60 s; last step: 3"
        await s.until_running(attempt=2, after_s=30)
        await s.end_well(attempt=2)


async def test_a_finished_job_is_deleted_after_its_ttl(open_cluster: OpenCluster, tmp_path: Path) -> None:
    """ttlSecondsAfterFinished deletes the job itself."""
    async with running_job(open_cluster, tmp_path, runPolicy={"ttlSecondsAfterFinished": 100}) as s:
        await s.end_well()
        s.skip(101)
        await s.cluster.until_gone(JOBS, s.namespace, "digits")


async def test_a_recreated_job_starts_afresh(open_cluster: OpenCluster, tmp_path: Path) -> None:
    """A job deleted and created again under its name gets its own pods, not its predecessor's."""
    async with open_scenario(open_cluster, tmp_path) as s:
        first = await s.submit()
        await s.until_running()
        await s.cluster.api.delete(JOBS, s.namespace, "digits")
        second = await s.submit()
        assert first["metadata"]["uid"] != second["metadata"]["uid"]
        owner = second["metadata"]["uid"]
        for name in s.pod_names(2):
            await s.cluster.until(PODS, s.namespace, name, lambda p: p and _owner(p) == owner)
        await s.until_running()
        s.succeed()
        done = await s.until_state("Succeeded", "Failed")
        assert condition(done, "Succeeded")["status"] == "True"


def _owner(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["ownerReferences"][0]["uid"])
