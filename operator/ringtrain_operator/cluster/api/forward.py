"""Connection to a port of a pod over a WebSocket, as `kubectl port-forward` makes it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from .connection import ApiConnection
from .errors import Unreachable
from .execute import pod_stream
from .resources import PODS

if TYPE_CHECKING:
    import aiohttp

# Channels of the protocol: the first byte of every message. The first message of each has the port's number.
_DATA, _ERROR = 0, 1
_CHUNK = 64 << 10


async def port_forward(
    connection: ApiConnection, namespace: str, pod: str, port: int, first: bytes, ends: ApiForwardEnds
) -> None:
    """Send `first` to `port` of the pod, then copy data in both directions until one side ends.

    Returns when one side has ended. Raises Unreachable if the port cannot be reached, and another ApiError if the
    request is refused; then no data was received.
    """
    path, what = PODS.path(namespace, pod, "portforward"), f"a forward to port {port} of pod {pod}"
    async with pod_stream(connection, path, [("ports", str(port))], what) as socket:
        await socket.send_bytes(bytes([_DATA]) + first)
        sending = asyncio.create_task(_send_forwarded(socket, ends))
        try:
            await _receive_forwarded(socket, ends, f"port {port} of pod {pod}")
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)


class ApiForwardEnds:
    """Local side of a forwarded port: an accepted connection. `answered`: whether the pod has sent data."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.answered = False

    async def read(self) -> bytes:
        """Return the next bytes from the local connection; empty at its end."""
        return await self._reader.read(_CHUNK)

    async def write(self, data: bytes) -> None:
        """Send `data` to the local connection; wait while its buffer is full."""
        self.answered = True
        self._writer.write(data)
        await self._writer.drain()


async def _send_forwarded(socket: aiohttp.ClientWebSocketResponse, ends: ApiForwardEnds) -> None:
    try:
        while data := await ends.read():
            await socket.send_bytes(bytes([_DATA]) + data)
    finally:
        await socket.close()  # also ends the other direction, because the local client has disconnected


async def _receive_forwarded(socket: aiohttp.ClientWebSocketResponse, ends: ApiForwardEnds, what: str) -> None:
    import aiohttp

    begun: set[int] = set()
    async for message in socket:
        if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
            continue
        channel, data = message.data[0], message.data[1:]
        if channel not in begun:  # the first message's first two bytes are the port's number
            begun.add(channel)
            data = data[2:]
        if channel == _DATA and data:
            await ends.write(data)
        elif channel == _ERROR and data and not ends.answered:
            raise Unreachable(f"{what}: {data.decode(errors='replace').strip()}")
