"""Wait on a job's state by a watch, over dropped connections."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

from ringtrain_operator.cluster.api import JOBS, ApiClient, ApiError, NotFound

ENDED = ("Succeeded", "Failed")


def state_of(job: dict[str, Any]) -> str:
    """The state that the operator gives a job, `Pending` before it has looked."""
    return str((job.get("status") or {}).get("state") or "Pending")


async def until_ended(api: ApiClient, namespace: str, name: str) -> str:
    """The state in which the job ended, `Deleted` if it is gone."""
    while True:
        try:
            job = await api.get(JOBS, namespace, name)
        except NotFound:
            return "Deleted"
        if state_of(job) in ENDED:
            return state_of(job)
        try:
            async with aclosing(api.watch(JOBS, namespace, since=job["metadata"]["resourceVersion"])) as events:
                async for event in events:
                    changed = event["object"]
                    if event["type"] == "BOOKMARK" or changed["metadata"]["name"] != name:
                        continue
                    if event["type"] == "DELETED" or state_of(changed) in ENDED:
                        break
        except ApiError:
            await asyncio.sleep(1.0)  # the API server is away, or history is gone: read again
