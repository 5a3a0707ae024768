"""Servers that write down who asked them and how: API servers that know no object, and proxies in front of them."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
_NOT_FOUND = b'{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","message":"none","code":404}'
# What kubectl must know before it asks for pods, by the end of the path.
_DISCOVERY = {
    "/api": b'{"kind":"APIVersions","versions":["v1"]}',
    "/api/v1": b'{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"pods","singularName":"pod",'
    b'"namespaced":true,"kind":"Pod","verbs":["get","list"]}]}',
    "/apis": b'{"kind":"APIGroupList","apiVersion":"v1","groups":[]}',
}
_CREDENTIALS = ("authorization", "impersonate-user", "impersonate-uid", "impersonate-group", "impersonate-extra-team")


@dataclass(frozen=True)
class Seen:
    """One request: the server that got it, and what it knows of whoever asked. `asked_for`: the name in TLS."""

    server: str
    namespace: str
    credentials: tuple[tuple[str, str], ...]
    certificate: str
    asked_for: str


@dataclass
class Record:
    """Requests that servers and proxies have seen; `ports`: of servers and proxies by name."""

    requests: set[Seen] = field(default_factory=set)
    through: set[str] = field(default_factory=set)
    ports: dict[str, int] = field(default_factory=dict)

    def take(self) -> tuple[set[Seen], set[str]]:
        """Return the requests since the last call."""
        found = (self.requests, self.through)
        self.requests, self.through = set(), set()
        return found


@asynccontextmanager
async def api_server(record: Record, name: str, tls: ssl.SSLContext | None) -> AsyncIterator[None]:
    """Answer every request with 404, at `record.ports[name]` of every address."""
    asked_for: dict[ssl.SSLObject | ssl.SSLSocket, str] = {}
    if tls is not None:
        tls.sni_callback = lambda connection, host, _context: asked_for.update({connection: host or ""})

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        path = head[0].split(" ")[1].split("?")[0]
        sent = [line.partition(": ")[::2] for line in head[1:] if line]
        credentials = tuple(sorted((key.lower(), value) for key, value in sent if key.lower() in _CREDENTIALS))
        subject = (writer.get_extra_info("peercert") or {}).get("subject", ())
        certificate = next((value for rdn in subject for _, value in rdn), "")
        answer = next((body for end, body in _DISCOVERY.items() if path.endswith(end)), b"")
        if "/namespaces/" in path:
            namespace, host = (
                path.split("/namespaces/")[1].split("/")[0],
                asked_for.get(writer.get_extra_info("ssl_object"), ""),
            )
            record.requests.add(Seen(name, namespace, credentials, certificate, host))
        writer.write(b"HTTP/1.1 200 OK\r\n" if answer else b"HTTP/1.1 404 Not Found\r\n")
        body = answer or _NOT_FOUND
        writer.write(b"Content-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body))
        writer.write(body)

    async with _server(serve, tls) as record.ports[name]:
        yield


@asynccontextmanager
async def http_proxy(record: Record, name: str, server: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[None]:
    """Pass every request on to the API server `server`, whatever host it is for."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        first, _, rest = head.partition(b"\r\n")
        method, target, _ = first.decode().split(" ")
        sent = [line for line in rest.decode().split("\r\n") if line.lower().startswith("proxy-authorization:")]
        record.through.add(
            " ".join([name, method if method == "CONNECT" else "", "/".join(target.split("/")[:3]), *sent])
        )
        opened = await asyncio.open_connection("127.0.0.1", record.ports[server])
        if method == "CONNECT":
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        else:
            opened[1].write(f"{method} /{target.split('/', 3)[3]} HTTP/1.1\r\n".encode() + rest)
        await _joined(reader, writer, *opened)

    async with _server(serve, tls) as record.ports[name]:
        yield


@asynccontextmanager
async def socks_proxy(record: Record, name: str, server: str) -> AsyncIterator[None]:
    """The same as a SOCKS5 proxy, which resolves hosts itself (RFC 1928)."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly((await reader.readexactly(2))[1])
        writer.write(b"\5\0")
        assert (await reader.readexactly(4))[3] == 3, "the client resolved the host"
        host = await reader.readexactly((await reader.readexactly(1))[0])
        port = int.from_bytes(await reader.readexactly(2), "big")
        record.through.add(f"{name} {host.decode()}:{port}")
        opened = await asyncio.open_connection("127.0.0.1", record.ports[server])
        writer.write(b"\5\0\0\1" + bytes(6))
        await _joined(reader, writer, *opened)

    async with _server(serve, None) as record.ports[name]:
        yield


@asynccontextmanager
async def _server(serve: Handler, tls: ssl.SSLContext | None) -> AsyncIterator[int]:
    async def closed_after(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
                await serve(reader, writer)
                await writer.drain()
        finally:
            writer.close()

    server = await asyncio.start_server(closed_after, "0.0.0.0", 0, ssl=tls)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def _joined(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    other_reader: asyncio.StreamReader,
    other_writer: asyncio.StreamWriter,
) -> None:
    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await source.read(65536):
                target.write(data)
                await target.drain()
        target.close()

    await asyncio.gather(copy(reader, other_writer), copy(other_reader, writer))
