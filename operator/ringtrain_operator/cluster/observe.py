"""Reader of a job's existing objects: pods by label (of large jobs only the changes), others by name.

A missing volume and the times of an image pull appear only in a kubelet's Events. These are read for few pods.
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
from ..placement.own_queue import NodeDevices
from ..spec.base import parse_time
from ..status.model import parse_status
from ..status.progress import is_start_unrecorded, last_started
from .api.client import ApiClient
from .api.errors import ApiError, Forbidden, NotFound
from .api.resources import COMPANIONS, EVENTS, NODES, PODS, ApiResource
from .memory import ReconcileMemory
from .poll import LauncherPollAnswer
from .queue import JobKey
from .versions import ResourceVersions

log = logging.getLogger(__name__)

# Known objects are read again after this time, because another client may have deleted one.
REREAD_AFTER_S = 600.0
# Resources of nodes change rarely, and many jobs may need them.
NODES_FRESH_S = 15.0
_IMAGE_WAITS = ("ErrImagePull", "ImagePullBackOff")
# Reason of the kubelet's event if a pod names an imagePullSecret that does not exist.
_NO_PULL_SECRET = "FailedToRetrieveImagePullSecret"

Json = dict[str, Any]


@dataclass(frozen=True)
class ClusterReading:
    """Everything read about one job: the input of `plan`, and the pods as the API returned them."""

    observed: Observed
    pods: tuple[Json, ...]


async def observe_job(
    versions: ResourceVersions,
    job: Mapping[str, Any],
    memory: ReconcileMemory,
    answer: LauncherPollAnswer,
    now: datetime,
) -> ClusterReading:
    """Read everything about a job that `plan` needs. Raises ApiError if a request fails."""
    api, meta, status = versions.api, job["metadata"], job.get("status") or {}
    began, ended = bool(status.get("attempt")), status.get("state") in ("Succeeded", "Failed")
    # Only a quorum read certainly shows what an earlier leader created or deleted; a cached read may lag.
    key = JobKey(meta["namespace"], meta["name"])
    pods = await versions.pods_of(key, quorum=began and not memory.listed)
    memory.listed = True
    ours, others = split_owned(pods, meta["uid"])
    if not any(_is_pod_of_attempt(p, status.get("attempt")) for p in ours):
        # The next pods need all objects that they mount, and their ServiceAccount.
        memory.forget_objects(int(status.get("attempt") or 0))
    if began and not ended:  # before, creations show existing names; afterwards nothing is created
        await read_objects(api, job, memory)
    nodes = await _readiness_of_suspects(api, ours, now)
    silent = await _readiness_since_silent(api, status)
    views = memory.views_of(ours, nodes, keep=versions.known_pods.has(key))
    memory.record_lost_pods(views, now)
    views = await with_warnings(api, meta["namespace"], views, now)
    if began and is_start_unrecorded(parse_status(status), answer.report):
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
    """Return the pods that are controlled by the job with this uid, and the owners of all other pods."""
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


async def read_objects(api: ApiClient, job: Mapping[str, Any], memory: ReconcileMemory) -> None:
    """Read the job's objects other than pods into `memory`, unless the last reading is recent and found no foreign
    object."""
    now = time.monotonic()
    fresh = now - memory.objects_read_at < REREAD_AFTER_S and not memory.foreign
    if fresh:
        return
    memory.objects_read_at, memory.is_outdated = (
        now,
        False,
    )  # set before the requests, so that changes during them count
    # A foreign pod without the job's label is in no list of the job's pods.
    pods = [ref.name for ref in memory.foreign if ref.kind == PODS.kind]
    names = [(resource, str(job["metadata"]["name"])) for resource in COMPANIONS] + [(PODS, name) for name in pods]
    try:
        found = await asyncio.gather(*(find_owner(api, job, resource, name) for resource, name in names))
    except BaseException:
        memory.objects_read_at = float("-inf")
        raise
    secrets = {ref for ref in memory.owned if ref.kind == "Secret"}
    memory.owned = secrets | {ref for ref in found if isinstance(ref, ObjectRef) and ref.kind != PODS.kind}
    memory.foreign = {other.ref: other for other in found if isinstance(other, Foreign)}


async def find_owner(
    api: ApiClient, job: Mapping[str, Any], resource: ApiResource, name: str
) -> ObjectRef | Foreign | None:
    """Return a reference to the object `name` if the job owns the object; otherwise the object's owner, as Foreign.

    Returns None if the object does not exist.
    """
    ref = ObjectRef(resource.kind, name)
    try:
        obj = await api.get(resource, job["metadata"]["namespace"], name)
    except NotFound:
        return None
    return ref if owned_by(obj, job["metadata"]["uid"]) else Foreign(ref, owner_name(obj))


class NodeResources:
    """Cache of the extended resources of all nodes, read at most once per `NODES_FRESH_S` seconds."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._room: NodeDevices | None = None
        self._read_at = float("-inf")
        self._lock = asyncio.Lock()

    async def read(self) -> NodeDevices | None:
        """Return the amounts of devices by node name; None if nodes cannot be read."""
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
    """Return the readiness (true or false) by node name, of each node whose kubelet has not reported a pod's end in
    time."""
    suspects = {p["spec"].get("nodeName") for p in pods if _is_overdue(p, now)} - {None}
    return {str(name): ready for name in suspects if (ready := await _node_is_ready(api, str(name))) is not None}


async def _readiness_since_silent(api: ApiClient, status: Mapping[str, Any]) -> dict[str, bool]:
    """Return a mapping from the node of the lost pod in `status` to whether it has been ready since the loss; empty if
    unknown."""
    lost = (status.get("ledger") or {}).get("lostPod") or {}
    if not lost.get("node"):
        return {}
    ready = await _node_is_ready(api, lost["node"], parse_time(lost.get("since")))
    return {} if ready is None else {lost["node"]: ready}


def _is_overdue(pod: Json, now: datetime) -> bool:
    due = parse_time(pod["metadata"].get("deletionTimestamp"))
    return due is not None and due < now


async def _node_is_ready(api: ApiClient, name: str, since: datetime | None = None) -> bool | None:
    """Return whether a node is ready and has been ready since `since`; None if it cannot be read."""
    try:
        node = await api.get(NODES, None, name)
    except NotFound:
        return False
    except Forbidden:
        return None  # a namespaced operator has no permission to read nodes
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
    """Return `pods` with warnings of Events: those that only an Event has.

    For each role, add the newest warning to the first pod whose kubelet has not reported in time, and a missing pull
    secret to the first pod that waits for its image. One pod of a role is enough, because all have the same volumes and
    images. Once an attempt's launcher has ended, no grace
    period applies: every pod of the attempt without a report counts as silent.
    """
    first: dict[str, PodView] = {}
    over = {pod.id.attempt for pod in pods if pod.id.role == contract.ROLE_LAUNCHER and pod.finished}
    silent = (pod for pod in pods if (due := pod.kubelet_report_due) and (due <= now or pod.id.attempt in over))
    pulling = (pod for pod in pods if pod.phase == "Pending" and pod.wait.reason in _IMAGE_WAITS)
    for pod in sorted((*silent, *pulling), key=lambda pod: pod.id.index):
        first.setdefault(pod.id.role, pod)
    events = await asyncio.gather(*(_events_about_pod(api, namespace, pod) for pod in first.values()))
    waits = {pod.id.uid: _wait_in(pod, about) for pod, about in zip(first.values(), events, strict=True)}
    return tuple(replace(pod, wait=waits[pod.id.uid]) if pod.id.uid in waits else pod for pod in pods)


def _wait_in(pod: PodView, events: Sequence[Json]) -> PodReason:
    """Return why the pod waits, with what only `events` about it say."""
    newest = max(events, key=_event_time, default={})
    if not pod.wait.reason:
        is_warning = newest.get("type") == "Warning"
        return PodReason(str(newest.get("reason")), str(newest.get("message") or "")) if is_warning else pod.wait
    lacks = next((str(one.get("message")) for one in events if one.get("reason") == _NO_PULL_SECRET), "")
    return replace(pod.wait, message="; ".join(filter(None, (pod.wait.message, lacks))))


async def with_pull(
    api: ApiClient, namespace: str, pods: tuple[PodView, ...], attempt: int, known: dict[str, Pull]
) -> tuple[PodView, ...]:
    """Return `pods`, with the times of the image pull in the gang's pod that started last.

    `known`: earlier results, by uid.
    """
    last = last_started(pod for pod in pods if pod.id.attempt == attempt and not pod.outlives_attempts)
    if last is None:
        return pods
    if last.id.uid not in known:
        known.clear()
        known[last.id.uid] = pull_of(await _events_about_pod(api, namespace, last), last.main.name)
    complete = last.with_pull(*known[last.id.uid])
    return tuple(complete if pod is last else pod for pod in pods)


async def _events_about_pod(api: ApiClient, namespace: str, pod: PodView) -> list[Json]:
    try:
        return await api.select(EVENTS, namespace, fields=f"involvedObject.uid={pod.id.uid}")
    except ApiError as exc:  # the pod then waits without a reason
        log.warning("events of pod %s/%s could not be read: %s", namespace, pod.id.name, exc)
        return []


def _event_time(event: Json) -> str:
    """Return the latest timestamp of `event`, in the API's format."""
    series: Json = event.get("series") or {}
    times = series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime")
    return max(str(time or "") for time in times)
