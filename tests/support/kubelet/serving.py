"""A kubelet's own server, where an API server fetches what `kubectl logs` shows and has commands run."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from aiohttp import WSMsgType, web

from support.certificates import own_context
from support.kubelet.execs import Start, serve_exec

DATA, ERROR = b"\x00", b"\x01"
Address = Callable[[str, str], str | None]
Find = Callable[[str, str], tuple[Path, Callable[[], bool]] | None]
WAITS = 'container "{container}" in pod "{pod}" is waiting to start: ContainerCreating'


class NodeServer:
    """`/containerLogs/NAMESPACE/POD/CONTAINER` and `/exec/…` over HTTPS, and `/portForward/NAMESPACE/POD`.

    `address`: that of a pod. `find`: a pod's log file, and whether it grows. `start`: runs a command beside a
    pod's container. `keeps`: of a longer log only about the newest so many bytes are served, from the begin of a
    line on.
    """

    def __init__(self, find: Find, start: Start, folder: Path, keeps: int, address: Address) -> None:
        self._address = address
        self._keeps = keeps
        self._find = find
        self._start_beside = start
        self._folder = folder
        self.port = 0
        self._cuts = 0

    def cut_logs(self) -> None:
        """End all answers that follow a log, as if there were no more to come."""
        self._cuts += 1

    async def start(self) -> None:
        """Listen on a free port of loopback."""
        app = web.Application()
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._answer)
        app.router.add_get("/portForward/{namespace}/{pod}", self._forward)
        app.router.add_get("/exec/{namespace}/{pod}/{container}", self._exec)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=own_context("kubelet", self._folder)).start()
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        """Stop listening."""
        await self._runner.cleanup()

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        return await serve_forward(request, self._address)

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        return await serve_exec(request, self._start_beside)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        found = self._find(request.match_info["namespace"], request.match_info["pod"])
        if found is None:
            return web.Response(status=404, text="no log of that container on this node")
        if not found[0].exists():
            return web.Response(status=400, text=WAITS.format_map(request.match_info))
        path, grows = found
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        follow, cuts = request.query.get("follow") == "true", self._cuts
        with path.open("rb") as log:
            if log.seek(0, 2) > self._keeps:
                log.seek(-self._keeps, 2)
                log.readline()
            else:
                log.seek(0)
            tail = request.query.get("tailLines")
            if tail is not None:
                lines = log.readlines()
                await response.write(b"".join(lines[max(0, len(lines) - int(tail)) :]))
            while True:
                ended = not grows()
                chunk = log.read(65536)
                if chunk:
                    await response.write(chunk)
                elif ended or not follow or self._cuts > cuts:
                    break
                else:
                    await asyncio.sleep(0.05)  # a file that another process writes
        with suppress(ConnectionError):
            await response.write_eof()
        return response


async def serve_forward(request: web.Request, address: Address) -> web.StreamResponse:
    """Connect to the port that the query names, at the address of the pod: the protocol v4.channel.k8s.io."""
    port = int(request.query["port"])
    found = address(request.match_info["namespace"], request.match_info["pod"])
    if found is None:
        return web.Response(status=404, text="no such pod on this node")
    socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
    await socket.prepare(request)
    number = port.to_bytes(2, "little")
    for channel in (DATA, ERROR):
        await socket.send_bytes(channel + number)
    try:
        reader, writer = await asyncio.open_connection(found, port)
    except OSError as exc:
        await socket.send_bytes(ERROR + f"error forwarding port {port} to pod: {exc.strerror}".encode())
        await socket.close()
        return socket
    answering = asyncio.create_task(_answer(socket, reader))
    async for message in socket:
        if message.type is WSMsgType.BINARY and message.data[:1] == DATA:
            writer.write(message.data[1:])
            await writer.drain()
    answering.cancel()
    await asyncio.gather(answering, return_exceptions=True)
    writer.close()
    return socket


async def _answer(socket: web.WebSocketResponse, reader: asyncio.StreamReader) -> None:
    while data := await reader.read(65536):
        await socket.send_bytes(DATA + data)
    await socket.close()
