"""Wait on a job's state by a watch, over dropped connections."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from ringtrain_operator import contract
from ringtrain_operator.cluster.api.client import ApiClient
from ringtrain_operator.cluster.api.errors import ApiError, NotFound
from ringtrain_operator.cluster.api.resources import JOBS, PODS

ENDED = ("Succeeded", "Failed")


def state_of(job: dict[str, Any]) -> str:
    """The state that the operator gives a job, `Pending` before it has looked."""
    return str((job.get("status") or {}).get("state") or "Pending")


@dataclass(frozen=True)
class End:
    """How a job ended: `Succeeded`, `Failed` or `Deleted`, and why it failed."""

    state: str
    why: str = ""


def _end_of(job: dict[str, Any]) -> End:
    conditions = (job.get("status") or {}).get("conditions") or []
    failed = next((c for c in conditions if c["type"] == "Failed" and c["status"] == "True"), None)
    return End(state_of(job), f"{failed['reason']}: {failed.get('message', '')}" if failed else "")


async def until_ended(api: ApiClient, namespace: str, name: str) -> End:
    """How the job ended, `Deleted` if it is gone."""
    while True:
        try:
            job = await api.get(JOBS, namespace, name)
        except NotFound:
            return End("Deleted")
        if state_of(job) in ENDED:
            return _end_of(job)
        try:
            async with aclosing(api.watch(JOBS, namespace, since=job["metadata"]["resourceVersion"])) as events:
                async for event in events:
                    of_it = event["object"]["metadata"].get("name") == name  # bookmarks have none
                    if of_it and (event["type"] == "DELETED" or state_of(event["object"]) in ENDED):
                        break
        except ApiError:
            await asyncio.sleep(1.0)  # the API server is away, or history is gone: read again


async def next_attempt(api: ApiClient, namespace: str, name: str, attempt: int) -> int | None:
    """The number of a later attempt, once its launcher has output; None when the job ends or is suspended.

    An attempt that ended before it was looked at is passed over.
    """
    while True:
        try:
            job = await api.get(JOBS, namespace, name)
            status = job.get("status") or {}
            if state_of(job) in (*ENDED, "Suspended"):
                return None
            if int(status.get("attempt") or 0) > attempt and await _launcher_began(api, job):
                return int(status["attempt"])
        except NotFound:
            return None
        except ApiError:
            pass  # the API server is away: ask again
        await asyncio.sleep(0.5)


async def _launcher_began(api: ApiClient, job: dict[str, Any]) -> bool:
    meta, attempt = job["metadata"], str(job["status"]["attempt"])
    try:
        pod = await api.get(PODS, meta["namespace"], f"{meta['name']}-launcher")
    except NotFound:
        return False
    began = (pod.get("status") or {}).get("phase") in ("Running", "Succeeded", "Failed")
    return began and pod["metadata"].get("labels", {}).get(contract.LABEL_ATTEMPT) == attempt
