"""HTTP server for the operator's health probes and metrics.

A replica, leader or not, is not ready while the API server does not answer.
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
"""Function for a probe: returns the problem, or an empty string."""


@asynccontextmanager
async def health_server(
    address: tuple[str | None, int], liveness_problem: Problem, readiness_problem: Problem, metrics: OperatorMetrics
) -> AsyncIterator[int]:
    """Serve /healthz, /readyz and /metrics within the block. Yields the port.

    The server runs in the event loop that reconciles, so the probes time out if this loop hangs.
    """

    async def expose(_request: web.Request) -> web.Response:
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=metrics.text(), headers=headers)

    app = web.Application()
    app.router.add_get("/healthz", _health_probe(liveness_problem))
    app.router.add_get("/readyz", _health_probe(readiness_problem))
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
    """Timing of checks of the API server. After `lost_after_s` without an answer the operator is not ready."""

    every_s: float = 5.0
    deadline_s: float = 5.0
    lost_after_s: float = 15.0


class ApiServerReach:
    """Periodic check that the API server answers, on a separate connection."""

    def __init__(self, connection: ApiConnection, times: ReachTimes | None = None) -> None:
        self._times = times or ReachTimes()
        limits = ApiLimits(connections=1, timeout_s=self._times.deadline_s, attempts=1)
        self._api = ApiClient(connection, limits=limits)
        self._answered_at: float | None = None
        self._problem = ""

    async def check_forever(self) -> None:
        """Request the API server's version periodically until cancelled."""
        try:
            while True:
                self._record_reach(await self._ask())
                await asyncio.sleep(self._times.every_s * random.uniform(0.8, 1.2))
        finally:
            await self._api.close()

    def problem(self) -> str:
        """Return the reason why the operator is not ready; empty while the API server answers."""
        if self._answered_at is None:
            return f"the API server has not answered yet{self._cause()}"
        silent_s = time.monotonic() - self._answered_at
        if silent_s < self._times.lost_after_s:
            return ""
        return f"the API server has not answered for {silent_s:.0f} s{self._cause()}"

    @property
    def failed(self) -> bool:
        """Whether the last request to the API server got no answer."""
        return bool(self._problem)

    def _cause(self) -> str:
        return f": {self._problem}" if self._problem else ""

    async def _ask(self) -> str:
        """Send one request to the API server. Return an empty text if the API server answers; otherwise the reason,
        which may be status 401 or 5xx."""
        try:
            await self._api.raw_get("/version")
        except (Unreachable, Unauthorized) as exc:
            return str(exc)
        except ApiError as exc:
            return str(exc) if exc.code >= 500 else ""  # a refusal is also an answer
        return ""

    def _record_reach(self, problem: str) -> None:
        if not problem:
            self._answered_at = time.monotonic()
        if problem and not self._problem:
            log.warning("the API server does not answer: %s", problem)
        elif self._problem and not problem:
            log.info("the API server answers again")
        self._problem = problem
