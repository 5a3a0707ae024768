"""Requests of an API server to a pod's node: the container's log, and the output of a command run in it."""

import asyncio

import aiohttp
from aiohttp import web

from support.fakeapi.errors import bad_request
from support.fakeapi.resources import Target
from support.fakeapi.store import Store


def _node_url(store: Store, request: web.Request, target: Target, verb: str) -> str:
    pod = store.get(target.kind, target.namespace, target.name or "")
    nodes = next(k for k in store.catalogue.kinds if k.plural == "nodes")
    node = store.get(nodes, None, pod["spec"].get("nodeName") or "")
    port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    container = request.query.get("container") or pod["spec"]["containers"][0]["name"]
    return f"https://127.0.0.1:{port}/{verb}/{target.namespace}/{target.name}/{container}"


async def pod_log(store: Store, request: web.Request, target: Target) -> web.StreamResponse:
    """The log as the kubelet answers it."""
    url = _node_url(store, request, target, "containerLogs")
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, params=request.query, ssl=False) as upstream,
    ):
        if upstream.status != 200:
            raise bad_request(await upstream.text())
        await response.prepare(request)
        async for chunk in upstream.content.iter_any():
            await response.write(chunk)
    return response


async def pod_exec(store: Store, request: web.Request, target: Target) -> web.StreamResponse:
    """The WebSocket between client and kubelet, message by message."""
    protocols = ("v4.channel.k8s.io",)
    url = _node_url(store, request, target, "exec")
    async with aiohttp.ClientSession() as session:
        try:
            upstream = await session.ws_connect(url, params=request.query, protocols=protocols, ssl=False)
        except aiohttp.WSServerHandshakeError as exc:
            raise bad_request(exc.message) from exc
        client = web.WebSocketResponse(protocols=protocols)
        await client.prepare(request)

        async def hang_up() -> None:
            async for _ in client:
                pass  # nothing is sent to a command's stdin here
            await upstream.close()

        hanging_up = asyncio.create_task(hang_up())
        async for message in upstream:
            await client.send_bytes(message.data)
        hanging_up.cancel()
        await client.close()
        return client
