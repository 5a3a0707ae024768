"""A kubelet's port-forward endpoint, over the WebSocket protocol v4.channel.k8s.io."""

import asyncio
from collections.abc import Callable

from aiohttp import WSMsgType, web

DATA, ERROR = b"\x00", b"\x01"
Address = Callable[[str, str], str | None]


async def serve_forward(request: web.Request, address: Address) -> web.StreamResponse:
    """Connect to the port that the query names, at the address of the pod."""
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
