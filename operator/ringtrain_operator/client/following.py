"""Wait on a job's state by a watch, over dropped connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from ringtrain_operator import contract
from ringtrain_operator.cluster.api.client import ApiClient
from ringtrain_operator.cluster.api.errors import ApiError, NotFound
from ringtrain_operator.cluster.api.resources import JOBS, PODS

Json = dict[str, Any]
ENDED = ("Succeeded", "Failed")


def state_of(job: dict[str, Any]) -> str:
    """The state that the operator gives a job, `Pending` before it has looked."""
    return str((job.get("status") or {}).get("state") or "Pending")


async def changes_of(api: ApiClient, namespace: str, name: str) -> AsyncGenerator[Json, None]:
    """The job as it is now, and after each change, over dropped connections; ends when that job is gone."""
    uid: str | None = None
    while True:
        try:
            job = await api.get(JOBS, namespace, name)
        except NotFound:
            return
        uid = uid or job["metadata"]["uid"]
        if job["metadata"]["uid"] != uid:
            return
        yield job
        try:
            async with aclosing(api.watch(JOBS, namespace, since=job["metadata"]["resourceVersion"])) as events:
                async for event in events:
                    if event["object"]["metadata"].get("uid") != uid:  # bookmarks have none
                        continue
                    if event["type"] == "DELETED":
                        return
                    yield event["object"]
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
