"""Jobs in the queues of the real Kueue, on a real control plane; nodes run containers by script.

Where Kueue is not there these are skipped; test_queueing.py has the same decisions without it.
"""

from pathlib import Path
from typing import Any

import pytest
from support.cluster import Cluster
from support.jobs import condition, state
from support.kueue import PRIORITIES, TOPOLOGIES, WORKLOADS
from support.queued import (
    GPU,
    PLENTY,
    Setting,
    described,
    gpu_job,
    none_left,
    open_queue,
    scenario,
    submit,
    workloads_of,
)

from ringtrain_operator.cluster.api.resources import EVENTS, NODES, PODS
from ringtrain_operator.plan.objects import LAUNCHER_ENDS_S

pytestmark = [pytest.mark.apiserver, pytest.mark.kueue]
Json = dict[str, Any]


async def test_jobs_run_as_quota_allows_and_in_their_order(setting: Setting, tmp_path: Path) -> None:
    """The second job waits, in Kueue's words, until the first has ended; its pods get the flavor's nodes."""
    async with scenario(setting, tmp_path) as s:
        taint = {"key": GPU, "operator": "Exists", "effect": "NoSchedule"}
        await open_queue(s, 2, flavor={"nodeLabels": {"pool": "gpu"}, "tolerations": [taint]})
        first = await submit(s, gpu_job("first", 2))
        await first.until_running()
        second = await submit(s, gpu_job("second", 2))
        waits = await second.until_condition("Queued", "True", "insufficient unused quota")
        assert "LocalQueue research" in waits["message"]
        assert state(await second.job()) == "Queued"
        assert await second.pods() == []
        first.succeed()
        await first.until_state("Succeeded")
        await second.until_running()
        pod = await s.cluster.api.get(PODS, s.namespace, "second-worker-0")
        assert pod["spec"]["nodeSelector"] == {"pool": "gpu"}
        assert taint in pod["spec"]["tolerations"]
        assert "nodeSelector" not in (await second.job())["spec"]["worker"]["template"]["spec"]
        await none_left(first)
        await none_left(second)


async def test_a_preempted_job_goes_on_when_there_is_room(setting: Setting, tmp_path: Path) -> None:
    """The urgent job gets pods when the last pod of the other is gone; that one goes on, and nothing counts."""
    async with scenario(setting, tmp_path) as s:
        await open_queue(s, 2, preemption={"withinClusterQueue": "LowerPriority"})
        urgent_class = f"urgent-{s.namespace}"
        await s.cluster.api.create(PRIORITIES, None, described(PRIORITIES, urgent_class, value=1000))
        slow = await submit(s, gpu_job("slow", 2))
        await slow.until_running()
        urgent = await submit(s, gpu_job("urgent", 2, {"kueue.x-k8s.io/priority-class": urgent_class}))
        told = await slow.until_condition("Queued", "True", "Preempted")
        assert told["reason"] == "Preempted"
        assert await urgent.pods() == []  # a launcher of the other is still there
        slow.skip(LAUNCHER_ENDS_S)
        await slow.until_pods(0)
        await urgent.until_running()
        assert await slow.pods() == []
        urgent.succeed()
        await urgent.until_state("Succeeded")
        await slow.until_running(attempt=2)
        status = (await slow.job())["status"]
        assert (status["restarts"], status["disruptions"]) == (0, 1)
        slow.succeed(attempt=2)
        await slow.until_state("Succeeded")
        (workload,) = await s.cluster.api.select(WORKLOADS, s.namespace, labels="ringtrain.dev/job-name=slow")
        await s.cluster.until(WORKLOADS, s.namespace, workload["metadata"]["name"], _is_finished)


def _is_finished(workload: Json | None) -> bool:
    return workload is not None and condition(workload, "Finished").get("status") == "True"


async def test_an_elastic_job_takes_what_there_is(setting: Setting, tmp_path: Path) -> None:
    """Four workers wanted, three devices free, two enough: three workers run."""
    async with scenario(setting, tmp_path) as s:
        await open_queue(s, 3)
        small = await submit(s, gpu_job("small", 4, elastic={"minReplicas": 2, "maxReplicas": 4}))
        await small.until_running(workers=3)
        assert (await small.job())["status"]["ledger"]["attemptWorkers"] == 3
        assert len(await small.pods()) == 4


async def test_a_suspended_job_leaves_no_workload(setting: Setting, tmp_path: Path) -> None:
    """Suspended, another gets its quota; resumed, it waits for its turn."""
    async with scenario(setting, tmp_path) as s:
        await open_queue(s, 2)
        first = await submit(s, gpu_job("first", 2))
        await first.until_running()
        second = await submit(s, gpu_job("second", 2))
        await second.until_state("Queued")
        await first.change({"runPolicy": {"suspend": True}})
        await first.until_state("Suspended")
        first.skip(LAUNCHER_ENDS_S)
        await second.until_running()
        assert not await workloads_of(first)
        await first.change({"runPolicy": {"suspend": False}})
        await first.until_condition("Queued", "True", "insufficient unused quota")
        second.succeed()
        await first.until_running(attempt=2)


@pytest.mark.parametrize("kueue", [True, False], ids=["workload", "group"])
async def test_a_job_that_never_ran_can_be_corrected(setting: Setting, tmp_path: Path, kueue: bool) -> None:
    """Another image is applied while the first can't be pulled: what was admitted goes back, the job queues again
    for what it is now, and says why; nothing counts."""
    wrong = gpu_job("first", 2)
    container = wrong["spec"]["worker"]["template"]["spec"]["containers"][0]
    container["image"] = "missing:1"
    async with scenario(setting, tmp_path, kueue=kueue) as s:
        await open_queue(s, 2)
        first = await submit(s, wrong)
        await first.until_condition("Running", "False", "missing:1")
        container["image"] = "train:1"
        await first.change({"worker": wrong["spec"]["worker"]})
        await first.until_running(attempt=2)
        status = (await first.job())["status"]
        assert (status["restarts"], status["disruptions"]) == (0, 0)
        events = await s.cluster.api.select(EVENTS, s.namespace)
        said = [event["message"] for event in events if event["reason"] == "Suspended"]
        words = "the job was changed before it ran: its pods are deleted, and it waits in LocalQueue research again"
        assert said == [words]


@pytest.mark.parametrize("what", ["queue", "size"])
async def test_a_job_that_waits_can_be_corrected(setting: Setting, tmp_path: Path, what: str) -> None:
    """One in a queue that is not there, and one that is larger than its quota, run once that is mended."""
    async with scenario(setting, tmp_path) as s:
        await open_queue(s, 2)
        wrong = gpu_job("first", 2, queue="reserch") if what == "queue" else gpu_job("first", 4)
        first = await submit(s, wrong)
        await first.until_condition("Queued", "True", "reserch" if what == "queue" else "insufficient quota")
        await first.change({"scheduling": {"queue": "research"}} if what == "queue" else {"worker": {"replicas": 2}})
        await first.until_running()
        assert (await first.job())["status"]["attempt"] == 1


async def test_workers_get_places_along_the_topology(setting: Setting, tmp_path: Path) -> None:
    """All workers of a job that requires one rack are in one, and neighbours in rank are neighbours there."""
    async with scenario(setting, tmp_path) as s:
        rack, host, pool = "example.com/rack", "kubernetes.io/hostname", s.namespace
        await label_nodes(s.cluster, pool, {"a": 1, "b": 2}, rack)
        levels = {"levels": [{"nodeLabel": rack}, {"nodeLabel": host}]}
        await s.cluster.api.create(TOPOLOGIES, None, described(TOPOLOGIES, pool, spec=levels))
        await open_queue(s, 8, flavor={"nodeLabels": {"pool": pool}, "topologyName": pool})
        wanted = gpu_job("near", 4, scheduling={"queue": "research", "topology": {"required": rack}})
        near = await submit(s, wanted)
        await near.until_condition("Queued", "False", "Admitted")
        await near.until_running(workers=4)
        names = [f"near-worker-{i}" for i in range(4)]
        pods = [await s.cluster.api.get(PODS, s.namespace, name) for name in names]
        hosts = [pod["spec"]["nodeSelector"][host] for pod in pods]
        assert sorted(set(hosts)) == [f"{pool}-b-0", f"{pool}-b-1"]
        assert hosts == sorted(hosts)
        for node in await s.cluster.api.select(NODES, labels=f"pool={pool}"):
            await s.cluster.api.delete(NODES, None, node["metadata"]["name"])


async def label_nodes(cluster: Cluster, pool: str, racks: dict[str, int], key: str) -> None:
    """Ready nodes of `pool` with two devices each, so many in each rack."""
    for rack, count in racks.items():
        for number in range(count):
            name = f"{pool}-{rack}-{number}"
            labels = {"pool": pool, key: rack, "kubernetes.io/hostname": name}
            await cluster.api.create(
                NODES, None, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
            )
            ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
            amounts = {**PLENTY, "pods": "110", GPU: "2"}
            status = {"conditions": [ready], "capacity": amounts, "allocatable": amounts}
            await cluster.api.patch(NODES, None, name, {"status": status}, subresource="status")
            # No controller of nodes runs that would take the taint of a new node away.
            await cluster.api.patch(NODES, None, name, {"spec": {"taints": None}})


async def test_without_rights_on_workloads_pods_are_queued_as_a_group(setting: Setting, tmp_path: Path) -> None:
    """Pods wait at Kueue's gate until the whole gang is admitted; the job ends, and leaves nothing."""
    async with scenario(setting, tmp_path, kueue=False) as s:
        await open_queue(s, 2)
        first = await submit(s, gpu_job("first", 2))
        await first.until_running()
        second = await submit(s, gpu_job("second", 2))
        waiting = await second.until_condition("Running", "False", "gate")
        assert condition(await second.job(), "Queued") == {}, waiting
        first.succeed()
        await first.until_state("Succeeded")
        await none_left(first)
        await second.until_running()
        second.succeed()
        await second.until_state("Succeeded")
        await none_left(second)


async def test_a_preempted_group_of_pods_queues_again_as_another(setting: Setting, tmp_path: Path) -> None:
    """Kueue deletes its pods; the next attempt waits at the gate, runs when there is room, and nothing counts."""
    async with scenario(setting, tmp_path, kueue=False) as s:
        await open_queue(s, 2, preemption={"withinClusterQueue": "LowerPriority"})
        urgent_class = f"urgent-{s.namespace}"
        await s.cluster.api.create(PRIORITIES, None, described(PRIORITIES, urgent_class, value=1000))
        slow = await submit(s, gpu_job("slow", 2))
        await slow.until_running()
        urgent = await submit(s, gpu_job("urgent", 2, {"kueue.x-k8s.io/priority-class": urgent_class}))
        await urgent.until_running()
        await slow.until(lambda j: j["status"]["attempt"] == 2)
        await slow.until_condition("Running", "False", "gate")
        urgent.succeed()
        await slow.until_running(attempt=2)
        status = (await slow.job())["status"]
        assert (status["restarts"], status["disruptions"]) == (0, 1)
        slow.succeed(attempt=2)
        await slow.until_state("Succeeded")
        await none_left(slow)
