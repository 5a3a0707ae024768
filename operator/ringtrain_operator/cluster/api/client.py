"""Client methods for the verbs of the Kubernetes API that ringtrain uses."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal

from .connection import ApiConnection
from .decode import decode_api_answer
from .errors import NotFound, error_of
from .resources import PODS, ApiResource
from .transport import ApiLimits, ApiRequest, ApiTransport, api_lines_of

Json = dict[str, Any]

# Response format without spec and status, for callers that need only metadata.
METADATA_ONLY = "application/json;as=PartialObjectMetadata{list};g=meta.k8s.io;v=v1,application/json"


@dataclass(frozen=True)
class ApiListing:
    """Objects of a list request, and the resource version of the list."""

    items: list[Json]
    version: str


class ApiClient:
    """Client of the Kubernetes API. Methods raise only ApiError. Objects are plain dicts, as the API sends them."""

    def __init__(
        self, connection: ApiConnection, *, user_agent: str = "ringtrain-operator", limits: ApiLimits | None = None
    ) -> None:
        self.connection = connection
        self._transport = ApiTransport(connection, user_agent, limits or ApiLimits())

    async def __aenter__(self) -> "ApiClient":
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    def fence(self, may_write: Callable[[], bool]) -> None:
        """Make all later writes raise NotLeader unless `may_write()` returns true."""
        self._transport.may_write = may_write

    async def get(self, resource: ApiResource, namespace: str | None, name: str) -> Json:
        """Read one object from the store."""
        found: Json = await self._transport.send(ApiRequest("GET", resource.path(namespace, name)))
        return found

    async def select(
        self, resource: ApiResource, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> list[Json]:
        """Return all objects of a namespace (None: of all) that match the selectors `labels` and `fields`."""
        query = {"fieldSelector": fields} if fields else {}
        query |= {"labelSelector": labels} if labels else {}
        found: list[Json] = (await self._transport.send(ApiRequest("GET", resource.path(namespace), query)))["items"]
        return found

    async def listing(
        self,
        resource: ApiResource,
        namespace: str | None = None,
        *,
        labels: str = "",
        not_older_than: str = "",
        shape: Any = None,
    ) -> ApiListing:
        """Return the objects that match `labels`, together with the list's resource version.

        `not_older_than`: a resource version; a cached answer that has reached it suffices. Raises VersionAhead if the
        server does not reach it within a few seconds. `shape`: TypedDict of the fields that the caller needs.
        """
        query = {"labelSelector": labels} if labels else {}
        if not_older_than:
            query.update(resourceVersion=not_older_than, resourceVersionMatch="NotOlderThan")
        answer = await self._transport.send(ApiRequest("GET", resource.path(namespace), query, shape=shape))
        return ApiListing(answer["items"], str(answer["metadata"].get("resourceVersion") or ""))

    async def pages(
        self, resource: ApiResource, namespace: str | None = None, *, size: int = 100, metadata_only: bool = False
    ) -> AsyncIterator[list[Json]]:
        """Yield all objects in pages of `size`, so that only one page is in memory.

        `metadata_only`: whether the objects have no fields other than their metadata.
        """
        accept = METADATA_ONLY.format(list="List") if metadata_only else "application/json"
        query = {"limit": str(size)}
        while True:
            answer = await self._transport.send(ApiRequest("GET", resource.path(namespace), query, accept=accept))
            yield answer["items"] or []  # an empty list of metadata is null
            if not answer["metadata"].get("continue"):
                return
            query["continue"] = answer["metadata"]["continue"]

    async def served_version(self, group: str, versions: Sequence[str]) -> str:
        """Return the first of `versions` of the API `group` that the server serves; empty if none."""
        try:
            found = await self.raw_get(f"/apis/{group}")
        except NotFound:
            return ""
        served = [str(one.get("version")) for one in found.get("versions") or ()]
        return next((version for version in versions if version in served), "")

    async def create(self, resource: ApiResource, namespace: str | None, obj: Mapping[str, Any]) -> Json:
        """Create an object and return it as stored. Raises AlreadyExists if an object has its name."""
        made: Json = await self._transport.send(ApiRequest("POST", resource.path(namespace), body=obj))
        return made

    async def create_unread(self, resource: ApiResource, namespace: str | None, obj: Mapping[str, Any]) -> str:
        """Create an object and return only its resourceVersion. Raises AlreadyExists if an object has its name."""
        request = ApiRequest("POST", resource.path(namespace), body=obj, accept=METADATA_ONLY.format(list=""))
        made = await self._transport.send(request)
        return str(made["metadata"].get("resourceVersion") or "")

    async def replace(self, resource: ApiResource, namespace: str | None, obj: Mapping[str, Any]) -> Json:
        """Replace an object and return it as stored. Raises Conflict if it changed since `obj` was read."""
        path = resource.path(namespace, obj["metadata"]["name"])
        stored: Json = await self._transport.send(ApiRequest("PUT", path, body=obj))
        return stored

    async def patch(
        self,
        resource: ApiResource,
        namespace: str | None,
        name: str,
        patch: Any,
        *,
        subresource: str | None = None,
        kind: Literal["merge", "json"] = "merge",
    ) -> Json:
        """Change an object by a merge patch or a JSON patch. Return the changed object."""
        path = resource.path(namespace, name, subresource)
        request = ApiRequest("PATCH", path, body=patch, content_type=f"application/{kind}-patch+json")
        stored: Json = await self._transport.send(request)
        return stored

    async def delete(
        self,
        resource: ApiResource,
        namespace: str | None,
        name: str,
        *,
        uid: str | None = None,
        grace_period_s: int | None = None,
    ) -> None:
        """Delete an object. Raises Conflict if it does not have the uid `uid`."""
        options: Json = {"propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_period_s is not None:
            options["gracePeriodSeconds"] = grace_period_s
        await self._transport.send(ApiRequest("DELETE", resource.path(namespace, name), body=options), want_body=False)

    async def watch(
        self, resource: ApiResource, namespace: str | None = None, *, labels: str = "", since: str | None = None
    ) -> AsyncGenerator[Json, None]:
        """Yield events `{"type", "object"}` until the server ends the stream. Raises Gone if `since` is too old."""
        query = {"watch": "true", "allowWatchBookmarks": "true"}
        query.update({"labelSelector": labels} if labels else {})
        query.update({"resourceVersion": since} if since else {})
        async with aclosing(self._lines(ApiRequest("GET", resource.path(namespace), query))) as lines:
            async for line in lines:
                event: Json = decode_api_answer(line)
                if event["type"] == "ERROR":
                    raise error_of(int(event["object"].get("code", 500)), event["object"], None)
                yield event

    async def pod_log(
        self,
        namespace: str,
        name: str,
        *,
        container: str = "",
        follow: bool = False,
        tail_lines: int | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """Yield the pod's log in whole lines including the newline, as stored on the pod's node.

        `follow`: whether to continue with new lines until the container ends. `tail_lines`: number of last lines to
        begin with; None for all lines.
        """
        query = {"follow": "true"} if follow else {}
        query.update({"container": container} if container else {})
        query.update({"tailLines": str(tail_lines)} if tail_lines is not None else {})
        request = ApiRequest("GET", PODS.path(namespace, name, "log"), query, accept="*/*")
        async with aclosing(self._lines(request)) as lines:
            async for line in lines:
                yield line

    async def _lines(self, request: ApiRequest) -> AsyncGenerator[bytes, None]:
        async with self._transport.stream(request) as content:
            async for line in api_lines_of(content):
                yield line

    async def raw_get(self, path: str) -> Any:
        """Return the API server's JSON answer to a GET request of any path, such as /version."""
        return await self._transport.send(ApiRequest("GET", path))
