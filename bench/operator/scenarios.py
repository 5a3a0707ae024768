"""What is measured: a burst of jobs, the way from a pod's change to the status, a restart, idleness, a soak."""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import aclosing
from typing import Any

import psutil
from plane import cpu_s, rss_mib, writes_so_far
from support.apiserver import ControlPlane
from support.jobs import job

from ringtrain_operator.cluster.api import JOBS, NAMESPACES, PODS, SERVICE_ACCOUNTS, ApiClient, NotFound

Json = dict[str, Any]


async def fresh_namespace(api: ApiClient, name: str) -> str:
    """A namespace whose default ServiceAccount is there."""
    await api.create(NAMESPACES, None, {"metadata": {"name": name}})
    while True:
        try:
            await api.get(SERVICE_ACCOUNTS, name, "default")
            return name
        except NotFound:
            await asyncio.sleep(0.05)


async def ceiling(api: ApiClient, count: int) -> Json:
    """What the API server takes from this Python client when nobody else works: `count` bare pods."""
    ns = await fresh_namespace(api, "ceiling")
    containers = [{"name": "main", "image": "none"}]
    began = time.perf_counter()
    await asyncio.gather(
        *(
            api.create(PODS, ns, {"metadata": {"name": f"p{i}"}, "spec": {"containers": containers}})
            for i in range(count)
        )
    )
    took = time.perf_counter() - began
    await asyncio.gather(*(api.delete(PODS, ns, f"p{i}", grace_period_s=0) for i in range(count)))
    return {"pods": count, "seconds": round(took, 2), "pods_per_s": round(count / took, 1)}


async def burst(api: ApiClient, ns: str, jobs: int, workers: int) -> Json:
    """`jobs` jobs of `workers` workers at once: pods a second from the first job until the last pod exists."""
    wanted = jobs * (workers + 1)
    version = (await api.raw_get(PODS.path(ns)))["metadata"]["resourceVersion"]
    began = time.perf_counter()
    creating = asyncio.gather(*(api.create(JOBS, ns, job(f"job-{i}", workers=workers)) for i in range(jobs)))
    first, last, seen = 0.0, 0.0, 0
    async with aclosing(api.watch(PODS, ns, since=version)) as events:
        async for event in events:
            if event["type"] == "ADDED":
                seen += 1
                last = time.perf_counter()
                first = first or last
                if seen == wanted:
                    break
    await creating
    took = last - began
    return {
        "jobs": jobs,
        "workers": workers,
        "pods": wanted,
        "seconds": round(took, 2),
        "seconds_to_first_pod": round(first - began, 2),
        "pods_per_s": round(wanted / took, 1),
    }


async def change_to_status(api: ApiClient, ns: str, jobs: int, at_once: int) -> Json:
    """From a pod's change to the job's status that tells of it, seen by a watch; one in each job."""
    answer = await api.raw_get(JOBS.path(ns))
    told: dict[str, float] = {}
    changed: dict[str, asyncio.Event] = {f"job-{i}": asyncio.Event() for i in range(jobs)}

    async def listen() -> None:
        async with aclosing(api.watch(JOBS, ns, since=answer["metadata"]["resourceVersion"])) as events:
            async for event in events:
                name, status = event["object"]["metadata"].get("name"), event["object"].get("status") or {}
                ready = ((status.get("replicaStatuses") or {}).get("worker") or {}).get("ready")
                if name in changed and ready == 1:
                    told.setdefault(name, time.perf_counter())
                    changed[name].set()

    slots, waits = asyncio.Semaphore(at_once), []

    async def change(name: str) -> None:
        async with slots:
            running = {"name": "train", "image": "train:1", "imageID": "", "ready": True, "restartCount": 0}
            running["state"] = {"running": {"startedAt": None}}
            status = {"status": {"phase": "Running", "containerStatuses": [running]}}
            await api.patch(PODS, ns, f"{name}-worker-0", status, subresource="status")
            at = time.perf_counter()
            await changed[name].wait()
            waits.append(max(0.0, told[name] - at))

    listening = asyncio.create_task(listen())
    await asyncio.gather(*(change(name) for name in changed))
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    cuts = statistics.quantiles(waits, n=100)
    return {
        "changes": jobs,
        "at_once": at_once,
        "p50_ms": round(cuts[49] * 1e3),
        "p99_ms": round(cuts[98] * 1e3),
        "max_ms": round(max(waits) * 1e3),
    }


async def remove_all(api: ApiClient, ns: str) -> None:
    """Delete all jobs and wait until the garbage collector has taken their pods."""
    jobs = await api.select(JOBS, ns)
    await asyncio.gather(*(api.delete(JOBS, ns, j["metadata"]["name"]) for j in jobs))
    while await api.select(PODS, ns):
        await asyncio.sleep(0.2)


async def finished_jobs(api: ApiClient, ns: str, count: int) -> None:
    """`count` jobs that ended long ago, as an operator would have left them."""
    now = "2026-01-01T00:00:00Z"
    conditions = [
        {
            "type": kind,
            "status": truth,
            "reason": reason,
            "message": "",
            "lastTransitionTime": now,
            "observedGeneration": 1,
        }
        for kind, truth, reason in (
            ("Accepted", "True", "Valid"),
            ("Running", "False", "Finished"),
            ("Succeeded", "True", "AllRanksSucceeded"),
        )
    ]
    for condition in conditions:
        if condition["type"] == "Running":
            condition["message"] = "the job has ended"

    async def make(index: int) -> None:
        name = f"done-{index}"
        await api.create(JOBS, ns, job(name, workers=2))
        selector = f"ringtrain.dev/job-name={name},ringtrain.dev/role=worker"
        none = {"active": 0, "ready": 0, "succeeded": 0, "failed": 0}
        status = {
            "state": "Succeeded",
            "conditions": conditions,
            "observedGeneration": 1,
            "attempt": 1,
            "attemptWorkers": 2,
            "restarts": 0,
            "disruptions": 0,
            "restartDelaySeconds": 0,
            "activeSeconds": 0,
            "startTime": now,
            "completionTime": now,
            "replicas": 0,
            "selector": selector,
            "workers": "0/2",
            "progressSummary": "",
            "replicaStatuses": {"launcher": none, "worker": none},
        }
        await api.patch(JOBS, ns, name, {"status": status}, subresource="status")

    await asyncio.gather(*(make(i) for i in range(count)))


async def quiet(process: psutil.Process) -> None:
    """Return when the operator has done what it had to: next to no CPU for three seconds."""
    while True:
        before = cpu_s(process)
        await asyncio.sleep(3)
        if cpu_s(process) - before < 0.1:
            return


async def idle(process: psutil.Process, seconds: float) -> Json:
    """CPU and memory of an operator that has nothing to do."""
    before = cpu_s(process)
    await asyncio.sleep(seconds)
    used = cpu_s(process) - before
    return {"seconds": seconds, "cpu_percent": round(100 * used / seconds, 2), "rss_mib": rss_mib(process)}


async def soak(api: ApiClient, ns: str, process: psutil.Process, size: tuple[int, int, int]) -> Json:
    """Jobs made and deleted again and again: memory after each round."""
    jobs, workers, rounds = size
    memory, speeds = [], []
    for _ in range(rounds):
        speeds.append((await burst(api, ns, jobs, workers))["pods_per_s"])
        await remove_all(api, ns)
        memory.append(rss_mib(process))
    return {"jobs": jobs, "workers": workers, "rounds": rounds, "rss_mib": memory, "pods_per_s": speeds}


def writes_between(before: dict[str, float], after: dict[str, float]) -> dict[str, int]:
    """Writes by resource that came in between."""
    return {k: int(v - before.get(k, 0)) for k, v in after.items() if v != before.get(k, 0)}


async def restart_writes(plane: ControlPlane, process: psutil.Process, before: dict[str, float]) -> Json:
    """What a freshly started operator wrote once it has looked at every job."""
    began = time.perf_counter()
    await quiet(process)
    return {
        "writes": writes_between(before, writes_so_far(plane)),
        "seconds_until_quiet": round(time.perf_counter() - began - 3, 1),
        "cpu_s": round(cpu_s(process), 2),
        "rss_mib": rss_mib(process),
    }
