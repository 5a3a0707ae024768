"""Watches, run by the library kopf. Each event only adds a job's key to the work queue.

kopf's `on.event` handlers store nothing, so no finalizer or annotation is added to a user's object. Lists and watches
request metadata only (kopf copies what it receives, and a pod's metadata is a tenth of it), and, except for jobs, only
objects with the operator's label. A watch of pods receives whole pods, which bypass kopf. For a job's other objects
only deletions matter. Secrets are not watched, because this needs permission to read them.
"""

import asyncio
import json
import logging
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import aiohttp
import kopf

from .. import contract
from ..build.names import ObjectRef
from ..observe.pod_shape import PodEvent
from .api.client import METADATA_ONLY, ApiClient
from .api.connection import ApiConnection
from .api.decode import decode_api_answer
from .api.errors import ApiError, Forbidden, ServerError
from .api.resources import COMPANIONS, JOBS, PODS, ApiResource
from .api.transport import api_lines_of
from .pods import PodChange
from .queue import JobKey

log = logging.getLogger(__name__)

Pods = dict[str, Any]
"""Pods by uid."""
Enqueue = Callable[[JobKey], None]
JobChanged = Callable[[JobKey, str], None]
"""Callback with a job's key and resourceVersion."""
PodChanged = Callable[[JobKey, PodChange], None]
"""Callback with the key of a pod's job, and the change."""
ObjectGone = Callable[[JobKey, ObjectRef], None]
"""Callback with a job's key and its deleted object."""
ExtraChanged = Callable[[JobKey, str], None]
"""Callback with a job's key and the kind of its changed Workload, PodGroup or ProvisioningRequest."""


@dataclass(frozen=True)
class WatchScope:
    """Namespaces and kinds to watch, and the callbacks. `namespaces`: empty for the whole cluster.

    `extras`: served kinds of queues, gang schedulers and autoscalers. `beat` is called every `beat_every_s` seconds
    from kopf's thread while its loop runs.
    """

    connection: ApiConnection
    namespaces: tuple[str, ...]
    job_changed: JobChanged
    pod_changed: PodChanged
    object_deleted: ObjectGone
    extra_changed: ExtraChanged
    extras: tuple[ApiResource, ...]
    ready: asyncio.Event
    beat: Callable[[], None]
    beat_every_s: float


async def watch_cluster(scope: WatchScope) -> None:
    """Enqueue every existing job and every change of a job or its pods, until cancelled.

    `scope.ready` is set when kopf has started. Raises the error with which kopf ended.

    kopf runs in a separate thread and loop, because it cancels every task of its loop when it ends.
    """
    host, stop = asyncio.get_running_loop(), threading.Event()
    kopf_ended = asyncio.ensure_future(asyncio.to_thread(asyncio.run, _watch_until(scope, host, stop)))
    try:
        await asyncio.shield(kopf_ended)
    finally:
        stop.set()
        await kopf_ended


# kopf warns that it does not handle signals in a thread; the process handles them.
logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)


async def _watch_until(scope: WatchScope, host: asyncio.AbstractEventLoop, stop: threading.Event) -> None:
    connection, started = scope.connection, asyncio.Event()
    read: Pods = {}

    async def tell_host() -> None:
        await started.wait()
        host.call_soon_threadsafe(scope.ready.set)

    async def beat_forever() -> None:
        while True:
            scope.beat()
            await asyncio.sleep(scope.beat_every_s)

    telling, beating = asyncio.create_task(tell_host()), asyncio.create_task(beat_forever())
    async with connection.session(
        middlewares=(_WatchMiddleware(connection, (JOBS, PODS, *COMPANIONS, *scope.extras)),),
        response_class=_readable_response(read),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=10.0),
        headers={"User-Agent": "ringtrain-operator-watch"},
    ) as session:
        await kopf.operator(
            registry=_watch_handlers(scope, host, session, read),
            settings=_watch_settings(scope),
            clusterwide=not scope.namespaces,
            namespaces=scope.namespaces,
            standalone=True,
            ready_flag=started,
            stop_flag=stop,
        )
    telling.cancel()
    beating.cancel()


async def wait_until_served(api: ApiClient, namespaces: tuple[str, ...]) -> None:
    """Wait until the API serves the job's kind; kopf would check only once. Raises Forbidden if the operator may not
    list jobs."""
    warned = False
    while True:
        try:
            async for _ in api.pages(JOBS, namespaces[0] if namespaces else None, size=1, metadata_only=True):
                return
        except ApiError as exc:
            if isinstance(exc, Forbidden):
                raise
            if not warned:
                log.warning("%s cannot be listed (%s), trying again; is the CRD installed?", JOBS.plural, exc)
                warned = True
            await asyncio.sleep(2.0 * random.uniform(0.8, 1.2))


def _watch_handlers(
    scope: WatchScope, host: asyncio.AbstractEventLoop, session: aiohttp.ClientSession, read: Pods
) -> kopf.OperatorRegistry:
    """Return kopf's handlers of events. `read`: pods that watches have received, by uid."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def log_in(**_: Any) -> kopf.AiohttpSession:
        return kopf.AiohttpSession(server=scope.connection.server, aiohttp_session=session)

    @kopf.on.event(contract.GROUP, contract.VERSION, contract.PLURAL, registry=registry)
    async def job_changed(namespace: str | None, name: str, meta: Any, **_: Any) -> None:
        version = str(meta.get("resourceVersion") or "")
        host.call_soon_threadsafe(scope.job_changed, JobKey(namespace or "", name), version)

    @kopf.on.event("", "v1", "pods", registry=registry)
    async def pod_changed(type: str | None, namespace: str | None, name: str, labels: Any, meta: Any, **_: Any) -> None:
        job, pod = labels.get(contract.LABEL_JOB), read.pop(str(meta.get("uid")), None)
        if job:
            change = PodChange(name, str(meta.get("resourceVersion") or ""), type, pod)
            host.call_soon_threadsafe(scope.pod_changed, JobKey(namespace or "", job), change)

    def watch_deletions(resource: ApiResource) -> None:
        @kopf.on.event(*_watched_group_version(resource), resource.plural, registry=registry)
        async def deleted(type: str | None, namespace: str | None, name: str, labels: Any, **_: Any) -> None:
            job = labels.get(contract.LABEL_JOB)
            if type == "DELETED" and job:
                ref = ObjectRef(resource.kind, name)
                host.call_soon_threadsafe(scope.object_deleted, JobKey(namespace or "", job), ref)

    for resource in COMPANIONS:
        watch_deletions(resource)

    def watch_changes(resource: ApiResource) -> None:
        @kopf.on.event(*_watched_group_version(resource), resource.plural, registry=registry)
        async def changed(namespace: str | None, labels: Any, **_: Any) -> None:
            if job := labels.get(contract.LABEL_JOB):
                host.call_soon_threadsafe(scope.extra_changed, JobKey(namespace or "", job), resource.kind)

    for resource in scope.extras:
        watch_changes(resource)
    return registry


def _watched_group_version(resource: ApiResource) -> tuple[str, str]:
    group, _, version = resource.api_version.rpartition("/")
    return group, version


def _watch_settings(scope: WatchScope) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.persistence.diffbase_storage = _WatchNoDiff()
    settings.scanning.disabled = True  # do not watch CRDs and namespaces, which would need more permissions
    settings.peering.standalone = True
    for resource in (PODS, *COMPANIONS, *scope.extras):
        key = (*_watched_group_version(resource), resource.plural)
        settings.watching.label_selectors[key] = f"{contract.LABEL_MANAGED_BY}={contract.MANAGED_BY}"
    settings.watching.chunk_size = 200
    settings.watching.server_timeout = random.randint(300, 600)
    settings.watching.reconnect_backoff = random.uniform(0.5, 1.5)
    settings.queueing.idle_timeout = 1.0
    settings.networking.error_backoffs = _WatchForever()
    settings.process.ultimate_exiting_timeout = None
    return settings


class _WatchForever:
    """Backoff delays for kopf that never end, because an unavailable API server must not end the operator."""

    def __iter__(self) -> Iterator[float]:
        wait_s = 0.5
        while True:
            yield wait_s * random.uniform(0.75, 1.25)
            wait_s = min(wait_s * 2, 15.0)


class _WatchNoDiff(kopf.DiffBaseStorage):
    """Replacement of kopf's storage for diffs, which no handler needs and which cost a quarter of its time."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        return None

    def store(self, **_: Any) -> None:
        pass


def _readable_response(read: Pods) -> type[aiohttp.ClientResponse]:
    """Return a class of HTTP responses that kopf can always process. `read` receives the watched pods.

    An empty list of metadata has `items: null`, which kopf does not expect. `managedFields` repeat the levels of a
    spec, so that one deeply nested object would end kopf's decoder or copying, and with it the watch.
    """

    class ReadableWatch(aiohttp.ClientResponse):
        async def start(self, connection: Any) -> aiohttp.ClientResponse:
            await super().start(connection)
            if "watch" in self.url.query and self.status < 400:
                of_pods = self.url.path.endswith(f"/{PODS.plural}")
                self.content = _WatchEvents(self.content, read if of_pods else None)  # type: ignore[assignment]
            return self

        async def json(self, **_options: Any) -> Any:
            decoded = _decoded_watch(await self.read())
            if isinstance(decoded, dict) and "items" in decoded:
                decoded["items"] = [_flat_watch_event(item) for item in decoded["items"] or ()]
            return decoded

    return ReadableWatch


class _WatchEvents:
    """Stream of watch events with `managedFields` removed. `read`: receives the pods, in a watch of pods."""

    def __init__(self, content: aiohttp.StreamReader, read: Pods | None) -> None:
        self._content = content
        self._read = read

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, _size: int) -> AsyncIterator[bytes]:
        async for line in api_lines_of(self._content):
            event = self._event_of(line)
            yield json.dumps({**event, "object": _flat_watch_event(event["object"])}).encode() + b"\n"

    def _event_of(self, line: bytes) -> Any:
        if self._read is None:
            return _decoded_watch(line)
        event = _decoded_watch(line, PodEvent)
        if event["type"] not in ("ADDED", "MODIFIED", "DELETED"):
            return _decoded_watch(line)
        pod = event["object"]
        self._read[pod["metadata"]["uid"]] = pod
        return {
            **event,
            "object": {"apiVersion": PODS.api_version, "kind": PODS.kind, "metadata": pod["metadata"]},
        }


def _decoded_watch(raw: bytes, shape: Any = None) -> Any:
    try:
        return decode_api_answer(raw, shape)
    except ServerError as exc:
        raise aiohttp.ClientPayloadError(str(exc)) from exc  # kopf then lists and watches again


def _flat_watch_event(obj: dict[str, Any]) -> dict[str, Any]:
    """Return `obj` without the `managedFields` in its metadata, which are deeply nested."""
    metadata = {name: value for name, value in obj["metadata"].items() if name != "managedFields"}
    return {**obj, "metadata": metadata}


class _WatchMiddleware:
    """HTTP middleware that adds credentials, and requests only metadata in lists and watches, except in watches of
    pods."""

    def __init__(self, connection: ApiConnection, watched: tuple[ApiResource, ...]) -> None:
        self._connection = connection
        self._plurals = tuple(f"/{resource.plural}" for resource in watched)
        self._pods = f"/{PODS.plural}"

    async def __call__(
        self,
        request: aiohttp.ClientRequest,
        handler: Callable[[aiohttp.ClientRequest], Awaitable[aiohttp.ClientResponse]],
    ) -> aiohttp.ClientResponse:
        request.headers.update(self._connection.headers())
        if request.method == "GET" and request.url.path.endswith(self._plurals):
            watching = "watch" in request.url.query
            if not (watching and request.url.path.endswith(self._pods)):
                request.headers["Accept"] = METADATA_ONLY.format(list="" if watching else "List")
        return await handler(request)


async def resync(api: ApiClient, namespaces: tuple[str, ...], enqueue: Enqueue, every_s: float) -> None:
    """Enqueue every job once per interval, in case an event was lost."""
    while True:
        await asyncio.sleep(every_s * random.uniform(0.5, 1.0))
        with suppress(ApiError):
            for namespace in namespaces or (None,):
                async for page in api.pages(JOBS, namespace, metadata_only=True):
                    for item in page:
                        enqueue(JobKey(item["metadata"]["namespace"], item["metadata"]["name"]))
                    await asyncio.sleep(len(page) * every_s / 20_000)  # 20,000 jobs in one interval
