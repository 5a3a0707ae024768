"""An elastic job with the real runtime in its containers: scaled, drained, a node lost, and ended well."""

import json
import re
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from support.cluster import Cluster, Json, OpenCluster, namespace_of
from support.jobs import job, state
from support.kubelet import Kubelet, ProcessRuntime
from support.operating import running_operator
from support.scenario import Clock

from ringtrain_operator import contract
from ringtrain_operator.cluster.api.resources import JOBS, PODS
from ringtrain_operator.cluster.queue import JobKey

ROOT = Path(__file__).parents[3]
TRAIN = ROOT / "tests" / "support" / "elastic_counting.py"
WITHIN_S = 200.0  # each stage takes some 10 s on an idle machine
ENTERED = re.compile(r"slot (\d+) in process (\d+) is in a world of (\d+) at step (\d+)")


def elastic_job(stop: Path) -> Json:
    """Two to four workers that train until the file `stop` is there."""
    made = job(
        workers=2,
        elastic={"minReplicas": 1, "maxReplicas": 4, "onLoss": "Shrink", "joinDelaySeconds": 0},
        networking={"timeoutSeconds": 60},
    )
    made["spec"]["worker"]["template"]["spec"]["containers"][0]["command"] = [
        sys.executable,
        str(TRAIN),
        str(stop),
    ]
    return made


def has_world(ranks: int, formation: int = 0) -> Any:
    """Whether a job's world has so many ranks, and is another than that of number `formation`."""

    def holds(obj: Json | None) -> bool:
        status = (obj or {}).get("status") or {}
        world = status.get("elastic") or {}
        assert status.get("attempt", 1) == 1, f"restarted: {status}"
        return bool(world.get("ranks") == ranks and world["formation"] > formation)

    return holds


async def until_world(c: Cluster, namespace: str, ranks: int, formation: int = 0) -> Json:
    """The job's status once its world has so many ranks."""
    found = await c.until(JOBS, namespace, "digits", has_world(ranks, formation), WITHIN_S)
    status: Json = found["status"]
    return status


async def test_workers_come_and_go(one_cluster: OpenCluster, tmp_path: Path, runtime: ProcessRuntime) -> None:
    """Scaled up, the launcher's pod lost, drained, a node lost, scaled down: one attempt, and a rank that was not
    touched is one process."""
    # One for each pod in turn, the launcher's second one too: who loses the launcher with a worker loses the step.
    stop, nodes, clock = tmp_path / "stop", tuple(f"node-{letter}" for letter in "abcde"), Clock()
    async with (
        namespace_of(one_cluster()) as (c, ns),
        Kubelet(c.api, runtime, tmp_path / "nodes", namespace=ns, nodes=nodes) as kubelet,
        running_operator(c.operator_connection, clock, namespaces=(ns,)) as operator,
    ):

        async def replicas(number: int) -> None:
            await c.api.patch(JOBS, ns, "digits", {"spec": {"worker": {"replicas": number}}})

        async def node_of(name: str) -> str:
            pod = await c.api.get(PODS, ns, name)
            return str(pod["spec"]["nodeName"])

        await c.api.create(JOBS, ns, elastic_job(stop))
        first = await until_world(c, ns, 2)
        await replicas(3)
        grown = await until_world(c, ns, 3)
        assert grown["elastic"]["formation"] > first["elastic"]["formation"]

        await c.api.delete(PODS, ns, "digits-launcher")
        learned = await until_world(c, ns, 3, grown["elastic"]["formation"])
        assert learned["restarts"] == learned["disruptions"] == 0
        pod = await c.api.get(PODS, ns, "digits-launcher")
        assert pod["metadata"]["labels"][contract.LABEL_INCARNATION] == "2"

        await kubelet.drain(await node_of("digits-worker-1"))
        again = await until_world(c, ns, 3, learned["elastic"]["formation"] + 1)
        steps = [status["elastic"]["lostSteps"] for status in (learned, again)]
        assert steps[0] == steps[1], "a worker that is drained leaves after its step"

        lost = await node_of("digits-worker-2")
        await kubelet.lose_node(lost)
        await kubelet.mark_disrupted(ns, "digits-worker-2", "DeletionByTaintManager")
        await c.api.delete(PODS, ns, "digits-worker-2")
        smaller = await until_world(c, ns, 2, again["elastic"]["formation"])
        clock.ahead += timedelta(seconds=120)
        operator.queue.add(JobKey(ns, "digits"))
        await until_world(c, ns, 3, smaller["elastic"]["formation"])
        pod = await c.api.get(PODS, ns, "digits-worker-2")
        assert pod["metadata"]["labels"][contract.LABEL_INCARNATION] == "2"
        assert pod["spec"]["nodeName"] != lost

        await replicas(1)
        await until_world(c, ns, 1)
        stop.touch()
        done = await c.until(JOBS, ns, "digits", lambda j: state(j) in ("Succeeded", "Failed"), WITHIN_S)
        log = b"".join([line async for line in c.api.pod_log(ns, "digits-launcher")]).decode()
        assert state(done) == "Succeeded", f"{done['status']}\n{log}"
        assert (done["status"]["attempt"], done["status"]["elastic"]["lostWorkers"]) == (1, 2)
        assert len({m[2] for m in ENTERED.finditer(log) if m[1] == "0"}) == 1
        kept = [path.read_text().splitlines() for path in (tmp_path / "nodes").rglob("events.jsonl")]
        events = [json.loads(line) for lines in kept for line in lines]
        told = "\n".join(f"{event['kind']} {event['text']}" for event in events)
        assert re.search(r"Started digits-worker-2 on node-., which was added", told), told
        assert re.search(r"Evicted digits-worker-1 on node-.: EvictionByEvictionAPI", told), told
        assert re.search(r"Started digits-worker-1 on node-., a replacement", told), told
        assert re.search(r"Evicted digits-worker-2 on node-.: DeletionByTaintManager", told), told
