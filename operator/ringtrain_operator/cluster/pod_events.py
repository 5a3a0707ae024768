"""What a kubelet says in Events alone: why a pod waits whose volumes are not there, and when it pulled an image.

Of few pods they are read.
"""

import asyncio
import logging
from dataclasses import replace
from datetime import datetime
from typing import Any

from ..observe.model import PodView
from ..observe.pods import Pull, pull_of
from ..status.progress import last_started
from .api.client import ApiClient
from .api.errors import ApiError
from .api.resources import EVENTS

log = logging.getLogger(__name__)
Json = dict[str, Any]


async def with_warnings(
    api: ApiClient, namespace: str, pods: tuple[PodView, ...], now: datetime
) -> tuple[PodView, ...]:
    """The pods; the first of each role that should have begun, with its newest Event if that is a warning.

    Others of the role have the same volumes.
    """
    first: dict[str, PodView] = {}
    silent = (pod for pod in pods if pod.speaks_by is not None and pod.speaks_by <= now)
    for pod in sorted(silent, key=lambda pod: pod.index):
        first.setdefault(pod.role, pod)
    said = await asyncio.gather(*(_newest_pod_event(api, namespace, pod) for pod in first.values()))
    told = {
        pod.uid: replace(pod, waiting=str(event.get("reason")), waiting_message=str(event.get("message") or ""))
        for pod, event in zip(first.values(), said, strict=True)
        if event.get("type") == "Warning"
    }
    return tuple(told.get(pod.uid, pod) for pod in pods)


async def with_pull(
    api: ApiClient, namespace: str, pods: tuple[PodView, ...], attempt: int, known: dict[str, Pull]
) -> tuple[PodView, ...]:
    """The pods; the one of the gang that started last with when it pulled its image.

    `known`: by uid, what was read before.
    """
    last = last_started(pod for pod in pods if pod.attempt == attempt and not pod.outlives_attempts)
    if last is None:
        return pods
    if last.uid not in known:
        known.clear()
        known[last.uid] = pull_of(await _events_about_pod(api, namespace, last), last.container)
    pulling, pulled = known[last.uid]
    told = replace(last, pulling_at=pulling, pulled_at=pulled)
    return tuple(told if pod is last else pod for pod in pods)


async def _newest_pod_event(api: ApiClient, namespace: str, pod: PodView) -> Json:
    return max(await _events_about_pod(api, namespace, pod), key=_told_at, default={})


async def _events_about_pod(api: ApiClient, namespace: str, pod: PodView) -> list[Json]:
    try:
        return await api.select(EVENTS, namespace, fields=f"involvedObject.uid={pod.uid}")
    except ApiError as exc:  # it waits without words, as before
        log.warning("events of pod %s/%s could not be read: %s", namespace, pod.name, exc)
        return []


def _told_at(event: Json) -> str:
    series: Json = event.get("series") or {}
    return _latest_pod_event(series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))


def _latest_pod_event(*times: object) -> str:
    """The times have the same form up to whole seconds."""
    return max(str(time or "") for time in times)
