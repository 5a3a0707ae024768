"""HTTP requests to the API server, with safe retries; every failure becomes an ApiError."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from multidict import CIMultiDict

from .connection import ApiConnection
from .decode import decode_api_answer
from .errors import ApiError, NotLeader, ServerError, TooManyRequests, Unreachable, VersionAhead, error_of

if TYPE_CHECKING:
    import aiohttp

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ApiLimits:
    """Limits of requests: concurrency, timeout, and number and delay of retries."""

    connections: int = 16
    timeout_s: float = 20.0
    attempts: int = 4
    first_wait_s: float = 0.1
    longest_wait_s: float = 5.0

    def wait_s(self, attempt: int, asked_s: float | None) -> float:
        """Return the delay before a retry, which is exponential with jitter and at least the server's `asked_s`."""
        backoff: float = min(self.longest_wait_s, self.first_wait_s * 2**attempt) * random.uniform(0.5, 1.5)
        return max(backoff, asked_s or 0.0)


@dataclass(frozen=True)
class ApiRequest:
    """One request to the API server. `shape`: type with the fields of the answer that are decoded."""

    method: str
    path: str
    query: Mapping[str, str] | None = None
    body: Any = None
    content_type: str = "application/json"
    accept: str = "application/json"
    shape: Any = None

    @property
    def is_write(self) -> bool:
        return self.method != "GET"


class ApiTransport:
    """Pool of connections. `may_write` is called before every write, so that a former leader sends none."""

    def __init__(self, connection: ApiConnection, user_agent: str, limits: ApiLimits) -> None:
        self._connection = connection
        self._user_agent = user_agent
        self._limits = limits
        self._session: aiohttp.ClientSession | None = None
        self.may_write: Callable[[], bool] = lambda: True

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            # Streams (watches, logs) use one connection each, so the pool must not limit connections.
            self._session = self._connection.session(
                headers={"User-Agent": self._user_agent, "Accept-Encoding": "identity"}
            )
            self._slots = asyncio.Semaphore(self._limits.connections)
            # Hundreds of creations may wait, so a third of the requests is reserved for reads and status updates.
            self._creations = asyncio.Semaphore(max(1, self._limits.connections * 2 // 3))
        return self._session

    async def close(self) -> None:
        """Close the pool; later requests fail."""
        if self._session is not None:
            await self._session.close()

    async def send(self, request: ApiRequest, *, want_body: bool = True) -> Any:
        """Send a request and return the decoded answer (None if `want_body` is false). Raises ApiError if the request
        fails."""
        attempt = 0
        while True:
            try:
                return await self._once(request, want_body)
            except VersionAhead:
                raise  # the server has already waited
            except (TooManyRequests, ServerError, Unreachable) as failed:
                attempt += 1
                if attempt >= self._limits.attempts:
                    raise
                wait_s = self._limits.wait_s(attempt, failed.retry_after_s)
                log.debug("%s %s failed (%s); retry in %.1f s", request.method, request.path, failed, wait_s)
                await asyncio.sleep(wait_s)

    async def _once(self, request: ApiRequest, want_body: bool) -> Any:
        if request.is_write and not self.may_write():
            raise NotLeader(f"{request.method} {request.path} was not sent: this replica is not the leader")
        session = self._open()
        lane = self._creations if request.method == "POST" else nullcontext()
        async with lane, self._slots, self._answer(session, request, self._limits.timeout_s) as response:
            raw = await response.read()
            return decode_api_answer(raw, request.shape) if want_body else None

    @asynccontextmanager
    async def stream(self, request: ApiRequest) -> AsyncIterator[aiohttp.StreamReader]:
        """Yield a reader of one answer's body, without a total timeout. Raises ApiError if the request fails."""
        async with self._answer(self._open(), request, None) as response:
            yield response.content

    @asynccontextmanager
    async def _answer(
        self, session: aiohttp.ClientSession, request: ApiRequest, timeout_s: float | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        import aiohttp

        headers = CIMultiDict({"Accept": request.accept})
        headers.extend(self._connection.headers())
        data = None
        if request.body is not None:
            headers["Content-Type"] = request.content_type
            data = json.dumps(request.body, separators=(",", ":")).encode()
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=10.0)
        try:
            async with session.request(
                request.method,
                self._connection.server + request.path,
                params=request.query,
                data=data,
                headers=headers,
                timeout=timeout,
            ) as response:
                if response.status >= 400:
                    raise await _api_refusal(response)
                yield response
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as exc:
            why = str(exc) or type(exc).__name__
            raise Unreachable(f"{request.method} {request.path}: no answer from the API server: {why}") from exc


async def api_lines_of(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield the lines of a stream including the newline, of any length (`readline` has a limit)."""
    rest = b""
    async for chunk in content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line + b"\n"
    if rest:
        yield rest


async def _api_refusal(response: aiohttp.ClientResponse) -> ApiError:
    raw = await response.read()
    try:
        status = decode_api_answer(raw)
    except ServerError:
        status = {"message": raw.decode(errors="replace")[:500].strip()}
        if response.status == 404:  # the server has no such path, so it does not have the resource
            status = {"message": f"the API server does not serve {response.url.path}; is the operator installed?"}
    try:
        retry_after_s = float(response.headers["Retry-After"])
    except (KeyError, ValueError):
        retry_after_s = None
    return error_of(response.status, status if isinstance(status, dict) else {}, retry_after_s)
