"""From a pod's change to the job's status that tells of it, as a watch on the jobs sees it."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

from ringtrain_operator.cluster.api.client import ApiClient
from ringtrain_operator.cluster.api.resources import JOBS, PODS

Json = dict[str, Any]


class ReadyWatch:
    """Number of ready workers in the status of each job of a namespace, and the time of its last change."""

    def __init__(self) -> None:
        self._said: dict[str, tuple[int, float]] = {}
        self._news = asyncio.Condition()

    async def until(self, name: str, ready: int) -> float:
        """The moment at which job `name` said that `ready` workers are."""
        async with self._news:
            await self._news.wait_for(lambda: self._said.get(name, (-1, 0.0))[0] == ready)
            return self._said[name][1]

    async def listen(self, api: ApiClient, ns: str, since: str) -> None:
        """Watch for ever."""
        async with aclosing(api.watch(JOBS, ns, since=since)) as events:
            async for event in events:
                meta, status = event["object"]["metadata"], event["object"].get("status") or {}
                ready = ((status.get("replicaStatuses") or {}).get("worker") or {}).get("ready", 0)
                async with self._news:
                    if self._said.get(meta.get("name"), (-1, 0.0))[0] != ready:
                        self._said[meta.get("name")] = (ready, time.perf_counter())
                    self._news.notify_all()


@asynccontextmanager
async def watching(api: ApiClient, ns: str) -> AsyncIterator[ReadyWatch]:
    """A watch on the jobs of `ns` from now on."""
    watch = ReadyWatch()
    since = (await api.listing(JOBS, ns)).version
    task = asyncio.create_task(watch.listen(api, ns, since))
    try:
        yield watch
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def change_and_wait(api: ApiClient, ns: str, watch: ReadyWatch, change: tuple[str, bool]) -> float:
    """Make worker 0 of a job ready, or not; seconds until the job's status says so."""
    name, ready = change
    container = {"name": "train", "image": "train:1", "imageID": "", "ready": ready, "restartCount": 0}
    container["state"] = {"running": {"startedAt": None}} if ready else {"waiting": {"reason": "ContainerCreating"}}
    status = {"status": {"phase": "Running", "containerStatuses": [container]}}
    await api.patch(PODS, ns, f"{name}-worker-0", status, subresource="status")
    at = time.perf_counter()
    return max(0.0, await watch.until(name, int(ready)) - at)


async def one_after_the_other(api: ApiClient, ns: str, names: list[str], at_once: int) -> list[float]:
    """One change in each job, so many at once: seconds of each."""
    slots = asyncio.Semaphore(at_once)

    async def change(name: str, watch: ReadyWatch) -> float:
        async with slots:
            return await change_and_wait(api, ns, watch, (name, True))

    async with watching(api, ns) as watch:
        return await asyncio.gather(*(change(name, watch) for name in names))


async def again_and_again(api: ApiClient, ns: str, names: list[str], enough: asyncio.Event) -> list[float]:
    """Changes in all these jobs, each as soon as the last was told, until `enough`: seconds of each."""
    waits: list[float] = []

    async def change(name: str, watch: ReadyWatch) -> None:
        ready = True
        while not enough.is_set():
            waits.append(await change_and_wait(api, ns, watch, (name, ready)))
            ready = not ready

    async with watching(api, ns) as watch:
        await asyncio.gather(*(change(name, watch) for name in names))
    return waits


def summary(waits: list[float]) -> Json:
    """Count and percentiles, in ms."""
    cuts = statistics.quantiles(waits, n=100)
    return {
        "changes": len(waits),
        "p50_ms": round(cuts[49] * 1e3),
        "p99_ms": round(min(cuts[98], max(waits)) * 1e3),
        "max_ms": round(max(waits) * 1e3),
    }
