"""Data workers and evaluators on an API server: replaced one by one, there over attempts, gone at the end."""

from pathlib import Path
from typing import Any

from support.cluster import OpenCluster
from support.scenario import Scenario, running_job

from ringtrain_operator import contract
from ringtrain_operator.cluster.api.resources import PODS, SECRETS

DATA = ("digits-data-0", "digits-data-1")
Json = dict[str, Any]


async def until_runs(s: Scenario, name: str, other_than: str = "") -> None:
    """Return when the pod runs, and is not the one of that uid."""

    def runs(pod: Json | None) -> bool:
        if pod is None or pod["metadata"]["uid"] == other_than:
            return False
        return bool((pod.get("status") or {}).get("phase") == "Running")

    await s.cluster.until(PODS, s.namespace, name, runs)


async def test_they_live_beside_the_gang(open_cluster: OpenCluster, tmp_path: Path) -> None:
    """One that ends is made anew; the gang restarts without them and keeps its Secret; the job's end is theirs."""
    async with running_job(open_cluster, tmp_path, dataWorkers={"replicas": 2}, evaluator={"timeoutSeconds": 0}) as s:
        for name in (*DATA, "digits-evaluator"):
            await until_runs(s, name)
        first = await s.uids()
        async with s.launcher_says(data={"waitFraction": 0.23}):
            await s.until(lambda j: (j["status"].get("dataWorkers") or {}).get("waitFraction") == 0.23)
            s.runtime.finish("digits-data-1", 1)
            await until_runs(s, "digits-data-1", other_than=first["digits-data-1"])
        second = await s.uids()
        assert {name for name in second if second[name] != first[name]} == {"digits-data-1"}
        s.fail()
        await s.until(lambda j: j["status"]["attempt"] == 2)
        await s.until_running(attempt=2, after_s=5)
        third = await s.uids()
        assert {name for name in third if third[name] == second[name]} == {*DATA, "digits-evaluator"}
        secrets = await s.cluster.api.select(SECRETS, s.namespace, labels=f"{contract.LABEL_JOB}=digits")
        assert len(secrets) == 1
        s.succeed(attempt=2)
        job = await s.until_state("Succeeded")
        assert (job["status"]["restarts"], job["status"]["attempt"]) == (1, 2)
        for name in (*DATA, "digits-evaluator"):
            await s.cluster.until(PODS, s.namespace, name, lambda pod: pod is None)
        assert {"DataWorkerLost"} <= await s.reasons()


async def test_all_lost_is_said_while_the_gang_runs(open_cluster: OpenCluster, tmp_path: Path) -> None:
    """InputStalled, until the first has registered again."""
    async with running_job(open_cluster, tmp_path, dataWorkers={"replicas": 1}) as s:
        await until_runs(s, DATA[0])
        there = {"index": 0, "pod": DATA[0], "registered": True}
        async with s.launcher_says(data={"waitFraction": 0.0, "workers": [there]}) as answer:
            await s.until_condition("InputStalled", "False", "1 of 1 data worker ready")
            answer["data"] = {"waitFraction": 1.0, "workers": []}
            await s.until_condition("InputStalled", "True", "receives nothing from them")
            answer["data"] = {"waitFraction": 0.1, "workers": [there]}
            job = await s.until(lambda j: j["status"]["dataWorkers"]["ready"] == 1)
        assert job["status"]["state"] == "Running"


async def test_suspended_none_is_left(open_cluster: OpenCluster, tmp_path: Path) -> None:
    """Nor when the job is deleted."""
    async with running_job(open_cluster, tmp_path, dataWorkers={"replicas": 2}, evaluator={}) as s:
        await s.suspend()
        s.skip(60)
        for name in (*DATA, "digits-evaluator"):
            await s.cluster.until(PODS, s.namespace, name, lambda pod: pod is None)
        job = await s.job()
        assert job["status"]["dataWorkers"] == {"desired": 0, "ready": 0}
