"""Whether this operator is alive and ready, and its metrics, over HTTP.

Without answers of the API server no replica, leader or not, is ready.
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web

from .api.client import ApiClient
from .api.connection import ApiConnection
from .api.errors import ApiError, Unauthorized, Unreachable
from .api.transport import ApiLimits
from .metrics import OperatorMetrics

log = logging.getLogger(__name__)


Problem = Callable[[], str]
"""Answers a question of the kubelet with what is wrong, or with an empty string."""


@asynccontextmanager
async def health_server(
    address: tuple[str | None, int], why_not_alive: Problem, why_not_ready: Problem, metrics: OperatorMetrics
) -> AsyncIterator[int]:
    """Serve /healthz, /readyz and /metrics within the block; its value is the port.

    The server lives in the loop that reconciles: when that loop hangs, the probes time out.
    """

    async def expose(_request: web.Request) -> web.Response:
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=metrics.text(), headers=headers)

    app = web.Application()
    app.router.add_get("/healthz", _health_probe(why_not_alive))
    app.router.add_get("/readyz", _health_probe(why_not_ready))
    app.router.add_get("/metrics", expose)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, *address).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def _health_probe(problem: Problem) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_request: web.Request) -> web.Response:
        wrong = problem()
        return web.Response(text=wrong or "ok", status=503 if wrong else 200)

    return answer


@dataclass(frozen=True)
class ReachTimes:
    """How often it is asked, how long for an answer, and how long without one until the operator is not ready."""

    every_s: float = 5.0
    deadline_s: float = 5.0
    lost_after_s: float = 15.0


class ApiServerReach:
    """Asks the API server for its version now and then, on a connection of its own, and keeps when it answered."""

    def __init__(self, connection: ApiConnection, times: ReachTimes | None = None) -> None:
        self._times = times or ReachTimes()
        limits = ApiLimits(connections=1, timeout_s=self._times.deadline_s, attempts=1)
        self._api = ApiClient(connection, limits=limits)
        self._answered_at: float | None = None
        self._problem = ""

    async def ask_forever(self) -> None:
        """Ask until cancelled."""
        try:
            while True:
                self._record_reach(await self._ask())
                await asyncio.sleep(self._times.every_s * random.uniform(0.8, 1.2))
        finally:
            await self._api.close()

    def why_not(self) -> str:
        """What is wrong; empty while the API server answers."""
        if self._answered_at is None:
            return f"the API server has not answered yet{self._cause()}"
        silent_s = time.monotonic() - self._answered_at
        if silent_s < self._times.lost_after_s:
            return ""
        return f"the API server has not answered for {silent_s:.0f} s{self._cause()}"

    @property
    def failed(self) -> bool:
        """Whether the last question had no answer."""
        return bool(self._problem)

    def _cause(self) -> str:
        return f": {self._problem}" if self._problem else ""

    async def _ask(self) -> str:
        """What was wrong with the answer; empty for one."""
        try:
            await self._api.raw_get("/version")
        except (Unreachable, Unauthorized) as exc:
            return str(exc)
        except ApiError as exc:
            return str(exc) if exc.code >= 500 else ""  # a refusal is an answer
        return ""

    def _record_reach(self, problem: str) -> None:
        if not problem:
            self._answered_at = time.monotonic()
        if problem and not self._problem:
            log.warning("the API server does not answer: %s", problem)
        elif self._problem and not problem:
            log.info("the API server answers again")
        self._problem = problem
