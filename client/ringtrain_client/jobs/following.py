"""Functions that wait for a job's state by a watch, across lost connections and restarts of the API server."""

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
# Enough for a control plane that is restarted or upgraded.
_MAX_OUTAGE_S = 300.0
_RETRY_S = 1.0


class ClientApiOutage:
    """Waits between retries while an API server, which has answered before, cannot be reached."""

    def __init__(self) -> None:
        self._since: float | None = None

    def end(self) -> None:
        """Record that the API server answers."""
        self._since = None

    async def wait(self, exc: ApiError) -> None:
        """Wait before the next try. Raises `exc` if it does not mean an outage, or after five minutes of outage."""
        if not isinstance(exc, Unreachable | ServerError | TooManyRequests):
            raise exc
        self._since = self._since or time.monotonic()
        if time.monotonic() - self._since > _MAX_OUTAGE_S:
            raise exc
        await asyncio.sleep(_RETRY_S)


def state_of(job: dict[str, Any]) -> str:
    """Return the state in the job's status; `Pending` if the operator has not set one yet."""
    return str((job.get("status") or {}).get("state") or "Pending")


async def changes_of(api: ApiClient, namespace: str, name: str) -> AsyncGenerator[Json, None]:
    """Yield the job now, and the changed job after each change. End if that job does not exist or is deleted.

    Raises any other ApiError. After the first read, raises an error about an unreachable API server only after five
    minutes.
    """
    uid: str | None = None
    outage = ClientApiOutage()
    while True:
        try:
            job = await api.get(JOBS, namespace, name)
            outage.end()
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
            await asyncio.sleep(_RETRY_S)  # the API server is unreachable, or the version is too old: read again


async def next_attempt(api: ApiClient, namespace: str, name: str, attempt: int) -> int | None:
    """Wait until an attempt after `attempt` has a started launcher. Return its number; None if the job ends, is
    suspended or is deleted first.

    An attempt that ended before it was observed is skipped. Raises any other ApiError, but an error about an
    unreachable API server only after five minutes.
    """
    outage = ClientApiOutage()
    while True:
        try:
            job = await api.get(JOBS, namespace, name)
            outage.end()
            status = job.get("status") or {}
            if state_of(job) in (*ENDED, "Suspended"):
                return None
            if int(status.get("attempt") or 0) > attempt and await _has_launcher_begun(api, job):
                return int(status["attempt"])
        except NotFound:
            return None
        except ApiError as exc:
            await outage.wait(exc)
        await asyncio.sleep(0.5)


async def _has_launcher_begun(api: ApiClient, job: dict[str, Any]) -> bool:
    """Return whether the launcher of the present attempt has started."""
    meta, attempt = job["metadata"], str(job["status"]["attempt"])
    try:
        pod = await api.get(PODS, meta["namespace"], f"{meta['name']}-launcher")
    except NotFound:
        return False
    began = (pod.get("status") or {}).get("phase") in ("Running", "Succeeded", "Failed")
    return began and pod["metadata"].get("labels", {}).get(contract.LABEL_ATTEMPT) == attempt
