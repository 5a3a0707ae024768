"""Read what exists for one job: pods by label, those of a large job as they change, the rest by name.

A kubelet says in Events alone why a pod waits whose volumes are not there, and when it pulled an image: of few pods
they are read.
"""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from .. import contract
from ..build.names import ObjectRef
from ..observe.model import Foreign, Observed, PodReason, PodView
from ..observe.pods import Pull, owned_by, owner_name, pull_of
from ..placement.line import NodeDevices
from ..spec.base import parse_time
from ..status.model import parse_status
from ..status.progress import is_start_over, last_started
from .api.client import ApiClient
from .api.errors import ApiError, Forbidden, NotFound
from .api.resources import COMPANIONS, EVENTS, NODES, PODS, ApiResource
from .memory import ReconcileMemory
from .poll import LauncherPollAnswer
from .queue import JobKey
from .versions import ResourceVersions

log = logging.getLogger(__name__)

# Objects that were seen are looked at again after so long: somebody may have deleted one.
REREAD_AFTER_S = 600.0
# What nodes have changes seldom; and many jobs may ask.
NODES_FRESH_S = 15.0

Json = dict[str, Any]


@dataclass(frozen=True)
class ClusterReading:
    """One job's surroundings: the value for `plan`, and the pods as the API has them."""

    observed: Observed
    pods: tuple[Json, ...]


async def read_surroundings(
    versions: ResourceVersions,
    job: Mapping[str, Any],
    memory: ReconcileMemory,
    answer: LauncherPollAnswer,
    now: datetime,
) -> ClusterReading:
    """Everything `plan` looks at. Raises ApiError."""
    api, meta, status = versions.api, job["metadata"], job.get("status") or {}
    began, ended = bool(status.get("attempt")), status.get("state") in ("Succeeded", "Failed")
    # What an earlier leader made or deleted shows in the store for certain, in a cache of it sooner or later.
    key = JobKey(meta["namespace"], meta["name"])
    pods = await versions.pods_of(key, quorum=began and not memory.listed)
    memory.listed = True
    ours, others = split_owned(pods, meta["uid"])
    if not any(_is_pod_of_attempt(p, status.get("attempt")) for p in ours):
        memory.forget_objects(
            int(status.get("attempt") or 0)
        )  # the pods that are made next must find all that they mount and run as
    if began and not ended:  # before, its creations tell whether a name is taken; afterwards nothing is created
        await look_at_objects(api, job, memory)
    nodes = await _readiness_of_suspects(api, ours, now)
    silent = await _readiness_since_silent(api, status)
    views = memory.views_of(ours, nodes, keep=versions.known_pods.has(key))
    memory.note_lost_pods(views, now)
    views = await with_warnings(api, meta["namespace"], views, now)
    if began and is_start_over(parse_status(status), answer.report):
        views = await with_pull(api, meta["namespace"], views, int(status["attempt"]), memory.pulls)
    observed = Observed(
        pods=views,
        objects=frozenset(memory.owned),
        foreign=(*others, *memory.foreign.values()),
        taken_secrets=frozenset(memory.taken_secrets),
        launcher=answer.report,
        launcher_error=answer.error,
        launcher_unreadable=answer.unreadable,
        launcher_age_s=answer.age_s,
        launcher_refused=answer.refused,
        refusals=memory.refusals,
        status=status,
        nodes_ready=silent,
    )
    return ClusterReading(observed, tuple(ours))


def split_owned(pods: Sequence[Json], uid: str) -> tuple[list[Json], list[Foreign]]:
    """The pods whose controller has this uid, and whose the others are. No pod is compared with another."""
    ours: list[Json] = []
    others: list[Foreign] = []
    for pod in pods:
        if owned_by(pod, uid):
            ours.append(pod)
        else:
            others.append(Foreign(ObjectRef("Pod", pod["metadata"]["name"]), owner_name(pod)))
    return ours, others


def _is_pod_of_attempt(pod: Json, attempt: object) -> bool:
    return (pod["metadata"].get("labels") or {}).get(contract.LABEL_ATTEMPT) == str(attempt)


async def look_at_objects(api: ApiClient, job: Mapping[str, Any], memory: ReconcileMemory) -> None:
    """Fill `memory` with what exists besides pods, if it is new to us, long ago, or in our way."""
    now = time.monotonic()
    fresh = now - memory.looked_at < REREAD_AFTER_S and not memory.foreign
    if fresh:
        return
    memory.looked_at, memory.is_outdated = now, False  # before: news that come while they are asked for are news
    # A pod in our way that does not name the job is in no list of its pods.
    pods = [ref.name for ref in memory.foreign if ref.kind == PODS.kind]
    asked = [(resource, str(job["metadata"]["name"])) for resource in COMPANIONS] + [(PODS, name) for name in pods]
    try:
        found = await asyncio.gather(*(find_owner(api, job, resource, name) for resource, name in asked))
    except BaseException:
        memory.looked_at = float("-inf")
        raise
    secrets = {ref for ref in memory.owned if ref.kind == "Secret"}
    memory.owned = secrets | {ref for ref in found if isinstance(ref, ObjectRef) and ref.kind != PODS.kind}
    memory.foreign = {other.ref: other for other in found if isinstance(other, Foreign)}


async def find_owner(
    api: ApiClient, job: Mapping[str, Any], resource: ApiResource, name: str
) -> ObjectRef | Foreign | None:
    """Whose the object of that name is: this job's, somebody else's, or it is not there."""
    ref = ObjectRef(resource.kind, name)
    try:
        obj = await api.get(resource, job["metadata"]["namespace"], name)
    except NotFound:
        return None
    return ref if owned_by(obj, job["metadata"]["uid"]) else Foreign(ref, owner_name(obj))


class NodeResources:
    """What nodes have of extended resources, read again at most every `NODES_FRESH_S`."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._room: NodeDevices | None = None
        self._read_at = float("-inf")
        self._lock = asyncio.Lock()

    async def read(self) -> NodeDevices | None:
        """By name of the node; None where nodes may not be read, as in an operator of a few namespaces."""
        async with self._lock:
            if time.monotonic() - self._read_at < NODES_FRESH_S:
                return self._room
            self._room = None
            try:
                found: dict[str, Mapping[str, int]] = {}
                async for page in self._api.pages(NODES, size=500):
                    found |= {node["metadata"]["name"]: _devices_of(node) for node in page}
                self._room = found
            except Forbidden:
                pass
            except ApiError as exc:
                log.warning("nodes could not be read: %s", exc)
            self._read_at = time.monotonic()
            return self._room


def _devices_of(node: Mapping[str, Any]) -> dict[str, int]:
    amounts = (node.get("status") or {}).get("allocatable") or {}
    return {name: int(amount) for name, amount in amounts.items() if "/" in name and str(amount).isdecimal()}


async def _readiness_of_suspects(api: ApiClient, pods: list[Json], now: datetime) -> dict[str, bool]:
    """Readiness of the nodes whose pods should be gone by now; empty where nodes may not be read."""
    suspects = {p["spec"].get("nodeName") for p in pods if _overdue_pod(p, now)} - {None}
    return {str(name): ready for name in suspects if (ready := await _node_is_ready(api, str(name))) is not None}


async def _readiness_since_silent(api: ApiClient, status: Mapping[str, Any]) -> dict[str, bool]:
    """Whether the node of a pod that went silent was ready since; empty where that is not known."""
    lost = (status.get("ledger") or {}).get("lostPod") or {}
    if not lost.get("node"):
        return {}
    ready = await _node_is_ready(api, lost["node"], parse_time(lost.get("since")))
    return {} if ready is None else {lost["node"]: ready}


def _overdue_pod(pod: Json, now: datetime) -> bool:
    due = parse_time(pod["metadata"].get("deletionTimestamp"))
    return due is not None and due < now


async def _node_is_ready(api: ApiClient, name: str, since: datetime | None = None) -> bool | None:
    """Whether the node is ready, and was ready `since`; None: it may not be read."""
    try:
        node = await api.get(NODES, None, name)
    except NotFound:
        return False
    except Forbidden:
        return None  # an operator of a few namespaces may not read nodes
    except ApiError as exc:
        log.warning("node %s could not be read: %s", name, exc)
        return None
    conditions = node.get("status", {}).get("conditions") or []
    ready: Json = next((c for c in conditions if c["type"] == "Ready" and c["status"] == "True"), {})
    turned = parse_time(ready.get("lastTransitionTime"))
    return bool(ready) and (since is None or turned is None or turned <= since)


async def with_warnings(
    api: ApiClient, namespace: str, pods: tuple[PodView, ...], now: datetime
) -> tuple[PodView, ...]:
    """The pods; the first of each role that should have begun, with its newest Event if that is a warning.

    Others of the role have the same volumes.
    """
    first: dict[str, PodView] = {}
    silent = (pod for pod in pods if pod.speaks_by is not None and pod.speaks_by <= now)
    for pod in sorted(silent, key=lambda pod: pod.id.index):
        first.setdefault(pod.id.role, pod)
    said = await asyncio.gather(*(_newest_pod_event(api, namespace, pod) for pod in first.values()))
    told = {
        pod.id.uid: replace(pod, wait=PodReason(str(event.get("reason")), str(event.get("message") or "")))
        for pod, event in zip(first.values(), said, strict=True)
        if event.get("type") == "Warning"
    }
    return tuple(told.get(pod.id.uid, pod) for pod in pods)


async def with_pull(
    api: ApiClient, namespace: str, pods: tuple[PodView, ...], attempt: int, known: dict[str, Pull]
) -> tuple[PodView, ...]:
    """The pods; the one of the gang that started last with when it pulled its image.

    `known`: by uid, what was read before.
    """
    last = last_started(pod for pod in pods if pod.id.attempt == attempt and not pod.outlives_attempts)
    if last is None:
        return pods
    if last.id.uid not in known:
        known.clear()
        known[last.id.uid] = pull_of(await _events_about_pod(api, namespace, last), last.main.name)
    told = last.with_pull(*known[last.id.uid])
    return tuple(told if pod is last else pod for pod in pods)


async def _newest_pod_event(api: ApiClient, namespace: str, pod: PodView) -> Json:
    return max(await _events_about_pod(api, namespace, pod), key=_told_at, default={})


async def _events_about_pod(api: ApiClient, namespace: str, pod: PodView) -> list[Json]:
    try:
        return await api.select(EVENTS, namespace, fields=f"involvedObject.uid={pod.id.uid}")
    except ApiError as exc:  # it waits without words, as before
        log.warning("events of pod %s/%s could not be read: %s", namespace, pod.id.name, exc)
        return []


def _told_at(event: Json) -> str:
    series: Json = event.get("series") or {}
    return _latest_pod_event(series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))


def _latest_pod_event(*times: object) -> str:
    """The times have the same form up to whole seconds."""
    return max(str(time or "") for time in times)
