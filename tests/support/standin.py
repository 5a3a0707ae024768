"""A stand-in for Kueue where only its API is there: every Workload is admitted, and evicted on request.

It writes the conditions that Kueue writes, and knows neither quota nor order; kueue.py runs the real one.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from ringtrain_operator.cluster.api.client import ApiClient
from ringtrain_operator.cluster.api.errors import ApiError, Conflict, NotFound
from ringtrain_operator.cluster.kueue import workloads
from support.kubelet.pod import new_condition

Json = dict[str, Any]
WORKLOADS = workloads("v1beta2")
PAUSE_S = 0.05


@asynccontextmanager
async def again_and_again(do: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Repeat `do` within the block, whatever the API server answers."""

    async def forever() -> None:
        while True:
            with suppress(ApiError):
                await do()
            await asyncio.sleep(PAUSE_S)  # a stand-in may be slow: nothing is measured with it

    task = asyncio.create_task(forever())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def admitting(api: ApiClient, namespace: str) -> AsyncIterator[None]:
    """Admit every waiting Workload of the namespace within the block."""
    async with again_and_again(lambda: _admit(api, namespace)):
        yield


async def evict(api: ApiClient, namespace: str, name: str) -> None:
    """Request a Workload's quota back, as if a more urgent one needs it."""
    while True:
        workload = await api.get(WORKLOADS, namespace, name)
        evicted = new_condition("Evicted", "True", "Preempted", "Preempted to accommodate a workload")
        with suppress(Conflict):
            return await _write(api, workload, [evicted])


async def _admit(api: ApiClient, namespace: str) -> None:
    for workload in await api.select(WORKLOADS, namespace):
        with suppress(Conflict, NotFound):
            await _look_at(api, workload)


async def _look_at(api: ApiClient, workload: Json) -> None:
    said = {c["type"]: c["status"] for c in (workload.get("status") or {}).get("conditions") or ()}
    if "True" in (said.get("QuotaReserved"), said.get("Finished")):
        return
    counts = {pod_set["name"]: pod_set["count"] for pod_set in workload["spec"]["podSets"]}
    given = [{"name": name, "count": count} for name, count in counts.items()]
    await _write(
        api,
        workload,
        [
            new_condition("QuotaReserved", "True", "QuotaReserved", "Quota reserved in ClusterQueue all"),
            new_condition("Admitted", "True", "Admitted", "The workload is admitted"),
            new_condition("Evicted", "False", "QuotaReserved", "Previously: evicted"),
        ],
        {"clusterQueue": "all", "podSetAssignments": given},
    )


async def _write(api: ApiClient, workload: Json, conditions: list[Json], admission: Json | None = None) -> None:
    meta, status = workload["metadata"], workload.get("status") or {}
    new = {c["type"] for c in conditions}
    kept = [c for c in status.get("conditions") or () if c["type"] not in new]
    written = {**status, "conditions": [*kept, *conditions], **({"admission": admission} if admission else {})}
    patch = [
        {"op": "replace", "path": "/metadata/resourceVersion", "value": meta["resourceVersion"]},
        {"op": "add", "path": "/status", "value": written},
    ]
    await api.patch(WORKLOADS, meta["namespace"], meta["name"], patch, subresource="status", kind="json")
