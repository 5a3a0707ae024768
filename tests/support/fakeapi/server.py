"""HTTP in front of `Store`: discovery, the verbs, watches and logs, with faults in between."""

import asyncio
import base64
import json
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from aiohttp import web

from support.fakeapi import patches, writes
from support.fakeapi.errors import StatusError, bad_request, version_ahead
from support.fakeapi.faults import FaultPlan, as_error
from support.fakeapi.nodes import pod_exec, pod_log
from support.fakeapi.resources import Target, discovery
from support.fakeapi.selectors import Selector
from support.fakeapi.store import Json, Store

BOOKMARK_INTERVAL_S = 5.0


@dataclass(frozen=True)
class Call:
    """One request that reached the server, for tests that count what a client did."""

    method: str  # WATCH for a watch
    plural: str
    namespace: str | None
    name: str | None
    subresource: str | None
    agent: str

    @property
    def is_write(self) -> bool:
        return self.method not in ("GET", "WATCH")

    @property
    def resource(self) -> str:
        """Return the resource as RBAC roles name it: the plural, with the subresource."""
        return f"{self.plural}/{self.subresource}" if self.subresource else self.plural

    @property
    def verb(self) -> str:
        """Return the RBAC verb of the method."""
        if self.method == "GET":
            return "get" if self.name else "list"
        if self.method == "DELETE":
            return "delete" if self.name else "deletecollection"
        return {"WATCH": "watch", "POST": "create", "PUT": "update", "PATCH": "patch"}[self.method]


class FakeApi:
    """`async with FakeApi() as api`: serves on a free port of loopback at `api.url`.

    `api.openapi`, if a test sets it, is what it says of the core group; `api.calls` is every request so far,
    `api.faults` what is scripted to go wrong, and `api.on_call` (if set) sees
    each call before it is carried out and may raise to drop its connection.
    """

    def __init__(
        self, store: Store | None = None, faults: FaultPlan | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.store = store or Store()
        self.faults = faults or FaultPlan()
        self.calls: list[Call] = []
        self.on_call: Callable[[Call, str], None] | None = None
        self.url = ""
        self._tls = tls
        self.openapi: Json | None = None
        self._watches: set[asyncio.Task[Any]] = set()
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> "FakeApi":
        app = web.Application(client_max_size=4 * 2**20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls)
        await site.start()
        self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *exc: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.drop_watches()
        await self._runner.cleanup()

    def drop_watches(self) -> None:
        """Cut every open watch, as a restarting API server does."""
        for task in self._watches:
            task.cancel()

    async def outage(self, agent: str, for_s: float) -> None:
        """Be away for `agent` (the beginning of its name) for so long, from now on; returns when that is over.

        Its watches are cut, and no request of its is answered. Raises AssertionError if it never asked.
        """
        refused = 0

        def away(call: Call, _when: str) -> None:
            nonlocal refused
            if call.agent.startswith(agent):
                refused += 1
                raise ConnectionAbortedError

        self.on_call = away
        self.drop_watches()
        await asyncio.sleep(for_s)  # the outage itself
        self.on_call = None
        assert refused, f"{agent} did not notice the outage"

    async def calls_within(self, seconds: float, agent: str) -> list[Call]:
        """Return the requests that `agent` sends in the next `seconds`."""
        before = len(self.calls)
        await asyncio.sleep(seconds)  # the silence itself
        return [call for call in self.calls[before:] if call.agent == agent]

    def _described(self, path: str) -> Json | None:
        """The OpenAPI document of the core group, and the index that leads to it, if a test has set one."""
        if self.openapi is None or not path.startswith("/openapi/v3"):
            return None
        index = {"paths": {"api/v1": {"serverRelativeURL": "/openapi/v3/api/v1?hash=1"}}}
        return index if path == "/openapi/v3" else self.openapi

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        found = discovery(self.store.catalogue, request.path) or self._described(request.path)
        if found is not None:
            return web.json_response(found)
        target = self.store.catalogue.target(request.path)
        if target is None:
            return _refuse(StatusError(404, "NotFound", "the server could not find the requested resource"))
        watching = request.query.get("watch") in ("1", "true")
        method = "WATCH" if watching else request.method
        agent = request.headers.get("User-Agent", "")
        call = Call(method, target.kind.plural, target.namespace, target.name, target.subresource, agent)
        self.calls.append(call)
        try:
            return await self._faulted(request, target, call)
        except StatusError as refused:
            return _refuse(refused)

    async def _faulted(self, request: web.Request, target: Target, call: Call) -> web.StreamResponse:
        self._notify(request, call, "before")
        fault = self.faults.next(call.method, call.resource, target.name or "")
        if fault is not None and fault.hold is not None:
            await fault.hold.wait()
            return await self._serve(request, target, call)
        if fault is None or fault.when == "after":
            response = await self._serve(request, target, call)
            self._notify(request, call, "after")
            if fault is None:
                return response
        if fault.code == 0:
            return _hang_up(request)
        refused = _refuse(as_error(fault))
        if fault.retry_after_s is not None:
            refused.headers["Retry-After"] = str(fault.retry_after_s)
        return refused

    def _notify(self, request: web.Request, call: Call, when: str) -> None:
        if self.on_call is None:
            return
        try:
            self.on_call(call, when)
        except ConnectionAbortedError:
            _hang_up(request)
            raise StatusError(503, "ServiceUnavailable", "hung up") from None

    async def _serve(self, request: web.Request, target: Target, call: Call) -> web.StreamResponse:
        slim = "as=PartialObjectMetadata" in request.headers.get("Accept", "")
        if call.method == "WATCH":
            return await self._watch(request, target, slim)
        if call.method == "GET" and target.subresource == "log":
            return await pod_log(self.store, request, target)
        if call.method == "GET" and target.subresource == "exec":
            return await pod_exec(self.store, request, target)
        if call.method == "GET" and target.name is None:
            return web.json_response(self._list(request, target, slim))
        if call.method == "GET":
            obj = self.store.get(target.kind, target.namespace, target.name or "")
            return web.json_response(_slim(obj) if slim else obj)
        return await self._write(request, target, call.method, slim)

    async def _write(self, request: web.Request, target: Target, method: str, slim: bool) -> web.Response:
        raw = await request.read()
        try:
            body: Any = json.loads(raw) if raw else {}
        except ValueError as exc:
            raise bad_request(f"error decoding the request: {exc}") from exc
        match method:
            case "POST" if target.subresource == "binding":
                return web.json_response(writes.bind(self.store, target, body), status=201)
            case "POST":
                made = writes.create(self.store, target, body)
                if self.store.orphaned(made):
                    asyncio.get_running_loop().call_soon(
                        writes.collect, self.store, made["metadata"]["ownerReferences"][0]["uid"]
                    )
                return web.json_response(_slim(made) if slim else made, status=201)
            case "PUT":
                return web.json_response(self._settle(target, writes.update(self.store, target, body)))
            case "PATCH":
                return web.json_response(self._settle(target, self._patch(request, target, body)))
            case "DELETE":
                return web.json_response(self._settle(target, writes.delete(self.store, target, body)))
        raise StatusError(405, "MethodNotAllowed", f"{method} is not supported here")

    def _settle(self, target: Target, obj: Json) -> Json:
        """If that write took the object away, its dependents go a moment later."""
        if not self.store.exists(target.kind, target.namespace, target.name or ""):
            asyncio.get_running_loop().call_soon(writes.collect, self.store, obj["metadata"]["uid"])
        return obj

    def _patch(self, request: web.Request, target: Target, body: Any) -> Json:
        current = self.store.get(target.kind, target.namespace, target.name or "")
        match request.content_type:
            case "application/merge-patch+json" | "application/strategic-merge-patch+json":
                wanted = patches.merge_patch(current, body)
                if "resourceVersion" not in (body.get("metadata") or {}):
                    wanted["metadata"].pop("resourceVersion", None)
            case "application/json-patch+json":
                wanted = patches.json_patch(current, body)
            case other:
                raise StatusError(415, "UnsupportedMediaType", f"{other} is not a patch that this server knows")
        return writes.update(self.store, target, wanted)

    def _list(self, request: web.Request, target: Target, slim: bool) -> Json:
        query = request.query
        asked = int(query.get("resourceVersion") or 0)
        if asked > self.store.version:
            raise version_ahead(asked, self.store.version)
        items = self.store.select(target.kind, target.namespace, _selector(request))
        meta: Json = {"resourceVersion": str(self.store.version)}
        start = int(base64.b64decode(query["continue"])) if query.get("continue") else 0
        limit = int(query.get("limit") or 0)
        if limit and start + limit < len(items):
            meta["continue"] = base64.b64encode(str(start + limit).encode()).decode()
        chosen: list[Json] | None = items[start : start + limit] if limit else items[start:]
        if slim:
            chosen = [_slim(o) for o in chosen or []] or None  # what a real API server says, too
        kind = "PartialObjectMetadata" if slim else target.kind.kind
        version = "meta.k8s.io/v1" if slim else target.kind.api_version
        return {"kind": f"{kind}List", "apiVersion": version, "metadata": meta, "items": chosen}

    async def _watch(self, request: web.Request, target: Target, slim: bool) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None
        waker, selector = self.store.waker(), _selector(request)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        self._watches.add(task)
        try:
            await self._stream(request, response, target, lambda: waker, (selector, slim))
        except (asyncio.CancelledError, ConnectionError):
            _hang_up(request)
        finally:
            self._watches.discard(task)
            self.store.forget(waker)
        return response

    async def _stream(
        self,
        request: web.Request,
        response: web.StreamResponse,
        target: Target,
        waker: Callable[[], asyncio.Event],
        view: tuple[Selector, bool],
    ) -> None:
        selector, slim = view
        version = int(request.query.get("resourceVersion") or 0)
        if not version:
            for obj in self.store.select(target.kind, target.namespace, selector):
                await _send(response, "ADDED", _slim(obj) if slim else obj)
            version = self.store.version
        deadline = asyncio.get_running_loop().time() + float(request.query.get("timeoutSeconds") or 1e9)
        while asyncio.get_running_loop().time() < deadline:
            waker().clear()
            try:
                changes = list(self.store.changes_since(version))
            except StatusError as expired:
                await _send(response, "ERROR", expired.body)
                return
            for change in changes:
                version = change.version
                if change.kind == target.kind and target.namespace in (
                    None,
                    change.obj["metadata"].get("namespace"),
                ):
                    seen = change.seen_by(selector)
                    if seen:
                        await _send(response, seen[0], _slim(seen[1]) if slim else seen[1])
            version = max(version, self.store.version if not changes else version)
            left = min(BOOKMARK_INTERVAL_S, deadline - asyncio.get_running_loop().time())
            try:
                async with asyncio.timeout(max(left, 0.001)):
                    await waker().wait()
            except TimeoutError:
                meta = {"resourceVersion": str(version), "creationTimestamp": None}
                kind = target.kind
                mark = {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": meta}
                await _send(response, "BOOKMARK", mark)


def _selector(request: web.Request) -> Selector:
    return Selector(request.query.get("labelSelector", ""), request.query.get("fieldSelector", ""))


def _slim(obj: Json) -> Json:
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}


async def _send(response: web.StreamResponse, kind: str, obj: Json) -> None:
    await response.write(json.dumps({"type": kind, "object": obj}).encode() + b"\n")


def _refuse(refused: StatusError) -> web.Response:
    return web.json_response(refused.body, status=refused.code)


def _hang_up(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=503)
