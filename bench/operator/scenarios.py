"""Scenarios to measure: bursts of jobs, a pod's change until the status, restart, idling, running jobs, a soak."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import Any

import psutil
from latency import again_and_again, one_after_the_other, summary
from launchers import answering_launchers, make_run
from plane import Spending, cpu_s, looks_so_far, requests_so_far, rss_mib, writes_among
from setting import Setting, finished_jobs, fresh_namespace, remove_all
from support.jobs import job

from ringtrain_operator.cluster.api.client import ApiClient
from ringtrain_operator.cluster.api.resources import JOBS, PODS

Json = dict[str, Any]


async def make_jobs(api: ApiClient, ns: str, jobs: int, workers: int) -> Json:
    """`jobs` jobs of `workers` workers at once: pods a second from the first job until the last pod exists."""
    wanted = jobs * (workers + 1)
    version = (await api.listing(PODS, ns)).version
    began = time.perf_counter()
    creating = asyncio.gather(*(api.create(JOBS, ns, job(f"job-{i}", workers=workers)) for i in range(jobs)))
    first, last, seen = 0.0, 0.0, 0
    while seen < wanted:  # the server ends a watch that does not keep up
        async with aclosing(api.watch(PODS, ns, since=version)) as events:
            async for event in events:
                version = event["object"]["metadata"]["resourceVersion"]
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


async def ceiling(s: Setting) -> Json:
    """Measure how many bare pods a second this client alone can create, with 1 and with 16 requests at a time."""
    ns = await fresh_namespace(s.api, "ceiling")

    async def rate(count: int, at_once: int) -> float:
        slots, containers = asyncio.Semaphore(at_once), [{"name": "main", "image": "none"}]

        async def create(name: str) -> None:
            async with slots:
                await s.api.create_unread(PODS, ns, {"metadata": {"name": name}, "spec": {"containers": containers}})

        began = time.perf_counter()
        await asyncio.gather(*(create(f"p{at_once}-{i}") for i in range(count)))
        return round(count / (time.perf_counter() - began), 1)

    return {"pods_per_s": {"one after the other": await rate(200, 1), "16 at once": await rate(800, 16)}}


async def burst(s: Setting) -> Json:
    """All jobs at once; then one change in each, ten at once; then nothing."""
    async with s.operator() as process:
        ns = await fresh_namespace(s.api, "burst")
        started, before, spent = rss_mib(process), requests_so_far(s.plane), Spending(s.plane, process)
        made = await make_jobs(s.api, ns, s.jobs, s.workers)
        made["cpu_s"] = spent.so_far()
        await quiet(process)
        made["cpu_s_until_quiet"] = spent.so_far()
        made["requests_until_quiet"] = dict(requests_so_far(s.plane) - before)
        made["rss_mib"] = {"started": started, "with_all_pods": rss_mib(process)}
        waits = await one_after_the_other(s.api, ns, [f"job-{i}" for i in range(s.jobs)], 10)
        await quiet(process)
        return {**made, "change_to_status": summary(waits), "idle_with_jobs": await idle(process, 20)}


async def busy(s: Setting) -> Json:
    """Pods of jobs that exist change again and again while all jobs of a burst are made."""
    async with s.operator() as process:
        ns, other = await fresh_namespace(s.api, "before"), await fresh_namespace(s.api, "burst")
        await make_jobs(s.api, ns, 10, s.workers)
        await quiet(process)
        enough = asyncio.Event()
        changing = asyncio.create_task(again_and_again(s.api, ns, [f"job-{i}" for i in range(10)], enough))
        spent = Spending(s.plane, process)
        made = await make_jobs(s.api, other, s.jobs, s.workers)
        made["cpu_s"] = spent.so_far()
        enough.set()
        return {**made, "change_to_status": summary(await changing)}


async def running(s: Setting) -> Json:
    """All jobs run: what they cost while their launchers report nothing new, and while they report steps."""
    seconds = 30.0
    async with s.operator() as process, answering_launchers() as launchers:
        ns = await fresh_namespace(s.api, "running")
        await make_jobs(s.api, ns, s.jobs, s.workers)
        await make_run(s.api, ns, launchers, s.workers)
        await asyncio.sleep(25)  # polls begin close together and spread out
        found: Json = {"jobs": s.jobs, "workers": s.workers, "seconds": seconds}
        for name, steps in (("no_news", False), ("steps", True)):
            launchers.steps = steps
            await asyncio.sleep(12)
            before, used, asked = requests_so_far(s.plane), cpu_s(process), launchers.asked
            await asyncio.sleep(seconds)
            found[name] = {
                "cpu_percent": round(100 * (cpu_s(process) - used) / seconds, 2),
                "launchers_asked": launchers.asked - asked,
                "requests": dict(requests_so_far(s.plane) - before),
            }
        return found


async def soak(s: Setting) -> Json:
    """200 jobs x 4 workers made and deleted again and again: memory after each round."""
    memory, speeds = [], []
    async with s.operator() as process:
        ns = await fresh_namespace(s.api, "soak")
        for _ in range(s.rounds):
            speeds.append((await make_jobs(s.api, ns, 200, 4))["pods_per_s"])
            await remove_all(s.api, ns)
            memory.append(rss_mib(process))
    return {"jobs": 200, "workers": 4, "rounds": s.rounds, "rss_mib": memory, "pods_per_s": speeds}


async def finished(s: Setting) -> Json:
    """Measure writes, CPU time and memory of a freshly started operator that looks at many long-finished jobs."""
    ns = await fresh_namespace(s.api, "finished")
    await finished_jobs(s.api, ns, s.finished)
    before = requests_so_far(s.plane)
    async with s.operator() as process:
        began = time.perf_counter()
        while looks_so_far(process) < s.finished:
            await asyncio.sleep(0.5)
        took = time.perf_counter() - began
        await quiet(process)
        return {
            "finished_jobs": s.finished,
            "looks": looks_so_far(process),
            "seconds_to_look_at_all": round(took, 1),
            "writes": writes_among(requests_so_far(s.plane) - before),
            "cpu_s": round(cpu_s(process), 2),
            "rss_mib": rss_mib(process),
            "idle": await idle(process, 20),
        }


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


SCENARIOS = {f.__name__: f for f in (burst, busy, running, soak, finished, ceiling)}
