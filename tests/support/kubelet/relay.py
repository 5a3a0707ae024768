"""A TCP port on one loopback address that leads to a port on another."""

import asyncio
from contextlib import suppress


class Relay:
    """Listens on `address:port` and passes connections on to 127.0.0.1:`target`."""

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server

    @classmethod
    async def open(cls, address: str, port: int, target: int) -> "Relay":
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", target)
            except OSError:
                writer.transport.abort()
                return
            await asyncio.gather(_pump(reader, inner_writer), _pump(inner_reader, writer))

        return cls(await asyncio.start_server(serve, address, port))

    def close(self) -> None:
        """Stop listening."""
        self._server.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError, asyncio.CancelledError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
