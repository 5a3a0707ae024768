"""Jobs of a thousand workers: pods a second, from each pod's change to the status, memory."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import psutil
from latency import summary
from launchers import answering_launchers, runs
from plane import Spending, looks_so_far, requests_so_far, rss_mib
from scenarios import make_jobs, quiet
from setting import Setting, fresh_namespace

from ringtrain_operator.cluster.api.client import ApiClient
from ringtrain_operator.cluster.api.resources import JOBS, PODS

Json = dict[str, Any]
TOLD_WITHIN_S = 60.0
ROUNDS = 10  # changes of one worker of each job


@dataclass
class Said:
    """Statuses of jobs: by job, each number of ready workers with the time at which it was seen."""

    ready: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    bytes: int = 0
    news: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def listen(self, api: ApiClient, ns: str, since: str) -> None:
        """Watch for ever."""
        async with aclosing(api.watch(JOBS, ns, since=since)) as events:
            async for event in events:
                if event["type"] == "BOOKMARK":
                    continue
                status, name = event["object"].get("status") or {}, event["object"]["metadata"]["name"]
                ready = ((status.get("replicaStatuses") or {}).get("worker") or {}).get("ready", 0)
                async with self.news:
                    self.ready.setdefault(name, []).append((time.perf_counter(), ready))
                    self.bytes = max(self.bytes, len(json.dumps(status)))
                    self.news.notify_all()

    async def until(self, name: str, ready: int) -> float:
        """The moment at which job `name` said last that `ready` workers are.

        Raises TimeoutError after a minute: an operator so starved that it lost its Lease has ended by itself.
        """
        async with asyncio.timeout(TOLD_WITHIN_S), self.news:
            await self.news.wait_for(lambda: (self.ready.get(name) or [(0.0, -1)])[-1][1] == ready)
            return self.ready[name][-1][0]


@asynccontextmanager
async def listening(api: ApiClient, ns: str) -> AsyncIterator[Said]:
    """A watch on the jobs of `ns` from now on."""
    said, since = Said(), (await api.listing(JOBS, ns)).version
    task = asyncio.create_task(said.listen(api, ns, since))
    try:
        yield said
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def thousands(s: Setting) -> Json:
    """Jobs at once; then all their pods begin to run; then one pod of each changes, again and again."""
    async with s.operator() as process, answering_launchers() as launchers, peak_memory(process) as peak:
        launchers.world = s.workers
        ns = await fresh_namespace(s.api, "thousands")
        started, spent = rss_mib(process), Spending(s.plane, process)
        found = await make_jobs(s.api, ns, s.jobs, s.workers)
        found["cpu_s"] = spent.so_far()
        await quiet(process)
        found["cpu_s_until_quiet"] = spent.so_far()
        async with listening(s.api, ns) as said:
            found["all_begin_to_run"] = await _all_begin_to_run(s, ns, said, process)
            await quiet(process)
            found["one_changes"] = await _one_changes(s, ns, said, process)
            found["status_bytes"] = said.bytes
        found["rss_mib"] = {"started": started, "most": max(peak), "at_the_end": rss_mib(process)}
        return found


async def _all_begin_to_run(s: Setting, ns: str, said: Said, process: psutil.Process) -> Json:
    pods = [pod async for page in s.api.pages(PODS, ns, size=500) for pod in page]
    patches = {pod["metadata"]["name"]: runs(pod) for pod in pods}
    changed: dict[str, list[float]] = {f"job-{i}": [] for i in range(s.jobs)}
    looks, before, spent = looks_so_far(process), requests_so_far(s.plane), Spending(s.plane, process)
    began = time.perf_counter()

    async def change(name: str) -> None:
        await s.api.patch(PODS, ns, name, patches[name], subresource="status")
        job, _, worker = name.partition("-worker-")
        if worker:
            changed[job].append(time.perf_counter())

    await asyncio.gather(*(change(name) for name in patches))
    took = time.perf_counter() - began
    await asyncio.gather(*(said.until(name, s.workers) for name in changed))
    waits = [lag for name, times in changed.items() for lag in lags(sorted(times), said.ready[name])]
    return {
        "changes_per_s": round(len(patches) / took, 1),
        "change_to_status": summary(waits),
        "looks": looks_so_far(process) - looks,
        "requests": dict(requests_so_far(s.plane) - before),
        "cpu_s": spent.so_far(),
    }


def lags(changed: list[float], said: list[tuple[float, int]]) -> list[float]:
    """For the k-th change of a job, how long after it the job first said that k workers are ready. In seconds."""
    waits, at = [], 0
    for number, moment in enumerate(changed, 1):
        while said[at][1] < number:
            at += 1
        waits.append(max(0.0, said[at][0] - moment))
    return waits


async def _one_changes(s: Setting, ns: str, said: Said, process: psutil.Process) -> Json:
    """One worker of each job is not ready, then ready again: as many changes on their way as there are jobs."""
    spent, waits = Spending(s.plane, process), []

    async def change(job: str) -> None:
        for ready in (False, True) * (ROUNDS // 2):
            container = {"name": "train", "image": "train:1", "imageID": "", "ready": ready, "restartCount": 0}
            waiting = {"waiting": {"reason": "ContainerCreating"}}
            container["state"] = {"running": {"startedAt": None}} if ready else waiting
            status = {"status": {"containerStatuses": [container]}}
            await s.api.patch(PODS, ns, f"{job}-worker-0", status, subresource="status")
            at = time.perf_counter()
            waits.append(max(0.0, await said.until(job, s.workers - (not ready)) - at))

    await asyncio.gather(*(change(f"job-{i}") for i in range(s.jobs)))
    return {"change_to_status": summary(waits), "cpu_s": spent.so_far()}


@asynccontextmanager
async def peak_memory(process: psutil.Process) -> AsyncIterator[list[float]]:
    """Resident memory in MiB, five times a second."""
    seen = [rss_mib(process)]

    async def look() -> None:
        while True:
            await asyncio.sleep(0.2)
            seen.append(rss_mib(process))

    task = asyncio.create_task(look())
    try:
        yield seen
    finally:
        task.cancel()
