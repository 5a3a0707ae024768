"""Kubernetes Events on a job, written after the status they speak of, one object for each thing that is said."""

import hashlib
import logging
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from ..plan import PlannedEvent
from ..status.model import format_time
from .api.client import ApiClient
from .api.errors import AlreadyExists, ApiError, NotLeader
from .api.resources import EVENTS

log = logging.getLogger(__name__)

REPORTER = "ringtrain-operator"
_MESSAGE_MAX = 1024  # the API's limit on an Event's message


async def send_events(api: ApiClient, job: Mapping[str, Any], events: Iterable[PlannedEvent]) -> None:
    """Write the events. The same event on the same job counts up one object, also over restarts of the operator.

    An event that cannot be written is logged and given up: it is news, not state.
    """
    for event in events:
        try:
            await _send_event(api, job, event)
        except NotLeader:
            raise
        except ApiError as exc:
            log.warning("event %s on %s was not written: %s", event.reason, job["metadata"]["name"], exc)


async def _send_event(api: ApiClient, job: Mapping[str, Any], event: PlannedEvent) -> None:
    meta = job["metadata"]
    namespace, now = meta["namespace"], format_time(datetime.now(UTC))
    body = _build_event(job, event, now)
    try:
        await api.create(EVENTS, namespace, body)
    except AlreadyExists:
        name = body["metadata"]["name"]
        known = await api.get(EVENTS, namespace, name)
        count = int(known.get("count") or 1) + 1
        await api.patch(EVENTS, namespace, name, {"count": count, "lastTimestamp": now})


def _build_event(job: Mapping[str, Any], event: PlannedEvent, now: str) -> dict[str, Any]:
    meta = job["metadata"]
    identity = "\n".join((meta["uid"], event.type, event.reason, event.message))
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    return {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"name": f"{meta['name']}.{digest}", "namespace": meta["namespace"]},
        "involvedObject": {
            "apiVersion": job["apiVersion"],
            "kind": job["kind"],
            "name": meta["name"],
            "namespace": meta["namespace"],
            "uid": meta["uid"],
            "resourceVersion": meta["resourceVersion"],
        },
        "type": event.type,
        "reason": event.reason,
        "message": event.message[:_MESSAGE_MAX],
        "source": {"component": REPORTER},
        "reportingComponent": REPORTER,
        "reportingInstance": REPORTER,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
