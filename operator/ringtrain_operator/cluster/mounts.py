"""Why a pod waits whose volumes are not there: a kubelet says it in Events alone. Of few pods they are read."""

import asyncio
import logging
from dataclasses import replace
from datetime import datetime
from typing import Any

from ..observe.model import PodView
from .api.client import ApiClient
from .api.errors import ApiError
from .api.resources import EVENTS

log = logging.getLogger(__name__)
Json = dict[str, Any]


async def with_events(
    api: ApiClient, namespace: str, pods: tuple[PodView, ...], now: datetime
) -> tuple[PodView, ...]:
    """The pods; the first of each role that should have begun, with its newest Event if that is a warning.

    Others of the role have the same volumes.
    """
    first: dict[str, PodView] = {}
    silent = (pod for pod in pods if pod.speaks_by is not None and pod.speaks_by <= now)
    for pod in sorted(silent, key=lambda pod: pod.index):
        first.setdefault(pod.role, pod)
    said = await asyncio.gather(*(_newest(api, namespace, pod) for pod in first.values()))
    told = {
        pod.uid: replace(pod, waiting=str(event.get("reason")), waiting_message=str(event.get("message") or ""))
        for pod, event in zip(first.values(), said, strict=True)
        if event.get("type") == "Warning"
    }
    return tuple(told.get(pod.uid, pod) for pod in pods)


async def _newest(api: ApiClient, namespace: str, pod: PodView) -> Json:
    try:
        events = await api.select(EVENTS, namespace, fields=f"involvedObject.uid={pod.uid}")
    except ApiError as exc:  # it waits without words, as before
        log.warning("events of pod %s/%s could not be read: %s", namespace, pod.name, exc)
        return {}
    return max(events, key=_told_at, default={})


def _told_at(event: Json) -> str:
    series: Json = event.get("series") or {}
    return _latest(series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))


def _latest(*times: object) -> str:
    """The times have the same form up to whole seconds."""
    return max(str(time or "") for time in times)
