"""A kubelet's exec endpoint: a command beside a container, over the WebSocket protocol v4.channel.k8s.io."""

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable, Sequence

from aiohttp import WSMsgType, web

STDOUT, STDERR, STATUS = b"\x01", b"\x02", b"\x03"


class Beside:
    """A process started beside a container; `container_ended` is set when that one ends, and takes it along."""

    def __init__(self, process: asyncio.subprocess.Process, container_ended: asyncio.Event) -> None:
        self.process = process
        self.container_ended = container_ended


Start = Callable[[str, str, Sequence[str]], Awaitable[Beside | None]]


async def serve_exec(request: web.Request, start: Start) -> web.StreamResponse:
    """Run the command of the request's query; `start(namespace, pod, command)` is None for an unknown pod."""
    command = request.query.getall("command")
    beside = await start(request.match_info["namespace"], request.match_info["pod"], command)
    if beside is None:
        return web.Response(status=404, text="no such container on this node")
    socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
    await socket.prepare(request)
    process = beside.process
    pumps = [asyncio.create_task(_pump(socket, c, s)) for c, s in ((STDOUT, process.stdout), (STDERR, process.stderr))]
    ended = asyncio.create_task(process.wait())
    gone = [asyncio.create_task(beside.container_ended.wait()), asyncio.create_task(_hung_up(socket))]
    try:
        await asyncio.wait((ended, *gone), return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            await asyncio.gather(*pumps)
            await socket.send_bytes(STATUS + json.dumps(_status(ended.result())).encode())
        else:
            process.kill()
            await ended
            if not socket.closed:  # the container has ended, and the command with it, as any process of it
                await socket.send_bytes(STATUS + json.dumps(_status(128 + signal.SIGKILL)).encode())
    finally:  # also when the reader has gone before all was sent, or the kubelet closes: none may outlive the loop
        for task in (*pumps, *gone, ended):
            task.cancel()
        _close(process)
    await asyncio.gather(*pumps, *gone, return_exceptions=True)
    await socket.close()
    return socket


def _close(process: asyncio.subprocess.Process) -> None:
    """End it and close its pipes at once, whatever they still hold: asyncio has no public word for that."""
    process._transport.close()  # type: ignore[attr-defined]


async def _pump(socket: web.WebSocketResponse, channel: bytes, stream: asyncio.StreamReader | None) -> None:
    assert stream is not None
    while data := await stream.read(65536):
        await socket.send_bytes(channel + data)


async def _hung_up(socket: web.WebSocketResponse) -> None:
    while (await socket.receive()).type not in (WSMsgType.CLOSE, WSMsgType.CLOSED, WSMsgType.CLOSING):
        pass


def _status(code: int) -> dict[str, object]:
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    cause = {"reason": "ExitCode", "message": str(code)}
    message = f"command terminated with non-zero exit code: {code}"
    return {"status": "Failure", "reason": "NonZeroExitCode", "message": message, "details": {"causes": [cause]}}
