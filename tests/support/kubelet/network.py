"""The network of pods: addresses of this machine, ports that lead to others, and probes of what answers there."""

import asyncio
import itertools
import random
import socket
from contextlib import suppress
from typing import Any

import aiohttp

Json = dict[str, Any]
# Nobody serves it: to have it bound on a block's last address is to have the block.
CLAIM_PORT = 7349
PODS_IN_BLOCK = 250 * 250


class AddressBlock:
    """One of the 127.x.0.0/16, this process's own until `close()`.

    Pods listen on the contract's ports; with addresses in common, two test runs on one machine would take each
    other's ports, and an operator would ask the other run's launcher.
    """

    def __init__(self) -> None:
        self._claim, self._block = _claim_block()
        self._numbers = itertools.count()

    def next(self) -> str:
        """An address that was not given before (after 62,500: the first again)."""
        number = next(self._numbers) % PODS_IN_BLOCK
        return f"127.{self._block}.{number // 250}.{number % 250 + 2}"

    def close(self) -> None:
        """Leave the block to others."""
        self._claim.close()


def _claim_block() -> tuple[socket.socket, int]:
    for block in random.sample(range(1, 255), 254):
        claim = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            claim.bind((f"127.{block}.255.254", CLAIM_PORT))
        except OSError:
            claim.close()
        else:
            return claim, block
    raise OSError("every block of loopback addresses is taken: are 254 kubelets running here?")


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


def readiness_url(pod: Json, address: str) -> str:
    """Return the URL of the first container's readiness probe; empty if it has none."""
    container = pod["spec"]["containers"][0]
    probe = (container.get("readinessProbe") or {}).get("httpGet")
    if not probe:
        return ""
    named = {p.get("name"): p["containerPort"] for p in container.get("ports") or []}
    return f"http://{address}:{named.get(probe['port'], probe['port'])}{probe.get('path', '/')}"


async def until_answers(url: str) -> None:
    """Return when `url` answers 200."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5.0)) as session:
        while True:
            try:
                async with session.get(url) as response:
                    if response.status == 200:
                        return
            except (aiohttp.ClientError, TimeoutError, OSError):
                pass  # it is starting still
            await asyncio.sleep(0.2)
