"""Wait on a job's state by a watch, over dropped connections and restarts of the API server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from ringtrain_operator import contract
from ringtrain_operator.cluster.api.client import ApiClient
from ringtrain_operator.cluster.api.errors import ApiError, NotFound, ServerError, TooManyRequests, Unreachable
from ringtrain_operator.cluster.api.resources import JOBS, PODS

Json = dict[str, Any]
ENDED = ("Succeeded", "Failed")
# A control plane that is restarted or upgraded is back by then.
_AWAY_S = 300.0
_LOOK_AGAIN_S = 1.0


class ClientApiOutage:
    """Bears that the API server is away for a while, once it has answered."""

    def __init__(self) -> None:
        self._since: float | None = None

    def is_over(self) -> None:
        """It answers again."""
        self._since = None

    async def wait(self, exc: ApiError) -> None:
        """Wait a moment. Raises `exc` if waiting does not help, or has not helped for five minutes."""
        if not isinstance(exc, Unreachable | ServerError | TooManyRequests):
            raise exc
        self._since = self._since or time.monotonic()
        if time.monotonic() - self._since > _AWAY_S:
            raise exc
        await asyncio.sleep(_LOOK_AGAIN_S)


def state_of(job: dict[str, Any]) -> str:
    """The state that the operator gives a job, `Pending` before it has looked."""
    return str((job.get("status") or {}).get("state") or "Pending")


async def changes_of(api: ApiClient, namespace: str, name: str) -> AsyncGenerator[Json, None]:
    """The job as it is now, and after each change; ends when that job is gone.

    Raises ApiError if the first answer is one, and when the API server has been away for five minutes.
    """
    uid: str | None = None
    outage = ClientApiOutage()
    while True:
        try:
            job = await api.get(JOBS, namespace, name)
            outage.is_over()
        except NotFound:
            return
        except ApiError as exc:
            if uid is None:
                raise
            await outage.wait(exc)
            continue
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
            await asyncio.sleep(_LOOK_AGAIN_S)  # the API server is away, or history is gone: read again


async def next_attempt(api: ApiClient, namespace: str, name: str, attempt: int) -> int | None:
    """The number of a later attempt, once its launcher has output; None when the job ends or is suspended.

    An attempt that ended before it was looked at is passed over. Raises ApiError as `changes_of` does.
    """
    outage = ClientApiOutage()
    while True:
        try:
            job = await api.get(JOBS, namespace, name)
            outage.is_over()
            status = job.get("status") or {}
            if state_of(job) in (*ENDED, "Suspended"):
                return None
            if int(status.get("attempt") or 0) > attempt and await _launcher_began(api, job):
                return int(status["attempt"])
        except NotFound:
            return None
        except ApiError as exc:
            await outage.wait(exc)
        await asyncio.sleep(0.5)


async def _launcher_began(api: ApiClient, job: dict[str, Any]) -> bool:
    meta, attempt = job["metadata"], str(job["status"]["attempt"])
    try:
        pod = await api.get(PODS, meta["namespace"], f"{meta['name']}-launcher")
    except NotFound:
        return False
    began = (pod.get("status") or {}).get("phase") in ("Running", "Succeeded", "Failed")
    return began and pod["metadata"].get("labels", {}).get(contract.LABEL_ATTEMPT) == attempt
