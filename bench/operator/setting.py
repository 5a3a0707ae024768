"""Setting of a scenario, and helpers that create and delete its objects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from plane import operator_process
from support.apiserver import ControlPlane
from support.jobs import job
from support.objects import NAMESPACES

from ringtrain_operator.cluster.api.client import ApiClient
from ringtrain_operator.cluster.api.errors import NotFound
from ringtrain_operator.cluster.api.resources import JOBS, PODS, SERVICE_ACCOUNTS

Json = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """A fresh control plane, a client of its admin, and how much of everything."""

    plane: ControlPlane
    api: ApiClient
    folder: Path
    jobs: int
    workers: int
    finished: int
    rounds: int

    @asynccontextmanager
    async def operator(self) -> AsyncIterator[psutil.Process]:
        """The operator as a process, leading and watching."""
        with operator_process(self.plane, self.folder) as process:
            yield process


async def warm_up(api: ApiClient) -> None:
    """Make the first job of a cluster and delete it: the API server holds that up for 2 s after the CRD came."""
    ns = await fresh_namespace(api, "warm-up")
    await api.create(JOBS, ns, job("first"))
    await api.delete(JOBS, ns, "first")


async def fresh_namespace(api: ApiClient, name: str) -> str:
    """A namespace whose default ServiceAccount is there."""
    await api.create(NAMESPACES, None, {"metadata": {"name": name}})
    while True:
        try:
            await api.get(SERVICE_ACCOUNTS, name, "default")
            return name
        except NotFound:
            await asyncio.sleep(0.05)


async def remove_all(api: ApiClient, ns: str) -> None:
    """Delete all jobs and wait until the garbage collector has taken their pods."""
    jobs = await api.select(JOBS, ns)
    await asyncio.gather(*(api.delete(JOBS, ns, j["metadata"]["name"]) for j in jobs))
    while [page async for page in api.pages(PODS, ns, size=1, metadata_only=True) if page]:
        await asyncio.sleep(0.5)


LONG_AGO = "2026-01-01T00:00:00Z"


async def finished_jobs(api: ApiClient, ns: str, count: int) -> None:
    """`count` jobs that ended long ago, as an operator would have left them."""

    async def make(name: str) -> None:
        await api.create(JOBS, ns, job(name, workers=2))
        await api.patch(JOBS, ns, name, {"status": _ended(name)}, subresource="status")

    await asyncio.gather(*(make(f"done-{i}") for i in range(count)))


def _ended(name: str) -> Json:
    said = (
        ("Accepted", "True", "Valid", ""),
        ("Running", "False", "Finished", "the job has ended"),
        ("Succeeded", "True", "AllRanksSucceeded", ""),
    )
    fields = ("type", "status", "reason", "message")
    when = {"lastTransitionTime": LONG_AGO, "observedGeneration": 1}
    none = {"active": 0, "ready": 0, "succeeded": 0, "failed": 0}
    return {
        "state": "Succeeded",
        "conditions": [{**dict(zip(fields, one, strict=True)), **when} for one in said],
        "observedGeneration": 1,
        "attempt": 1,
        "restarts": 0,
        "disruptions": 0,
        "ledger": {"attemptWorkers": 2, "credentials": 0, "restartDelaySeconds": 0, "activeSeconds": 0},
        "startTime": LONG_AGO,
        "completionTime": LONG_AGO,
        "replicas": 0,
        "selector": f"ringtrain.dev/job-name={name},ringtrain.dev/role=worker",
        "workers": "0/2",
        "progressSummary": "",
        "replicaStatuses": {"launcher": none, "worker": none},
    }
