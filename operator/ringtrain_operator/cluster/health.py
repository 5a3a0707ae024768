"""Whether this operator is alive and ready, and its metrics, over HTTP.

Without answers of the API server no replica, leader or not, is ready.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from ringtrain_operator.cluster.api import ApiClient, ApiError, Connection, Unauthorized, Unreachable
from ringtrain_operator.cluster.api.transport import RetryPolicy
from ringtrain_operator.cluster.metrics import Metrics

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Probes:
    """The questions that the kubelet asks: each answers with what is wrong, or with an empty string."""

    why_not_alive: Callable[[], str]
    why_not_ready: Callable[[], str]


class HealthServer:
    """`async with HealthServer(address, probes, metrics)` serves /healthz, /readyz and /metrics on `port`.

    It lives in the loop that reconciles: when that loop hangs, the probes time out.
    """

    def __init__(self, address: tuple[str | None, int], probes: Probes, metrics: Metrics) -> None:
        self._address = address
        self._probes = probes
        self._metrics = metrics
        self.port = 0

    async def __aenter__(self) -> "HealthServer":
        app = web.Application()
        app.router.add_get("/healthz", self._alive)
        app.router.add_get("/readyz", self._ready)
        app.router.add_get("/metrics", self._tell)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, *self._address).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._runner.cleanup()

    async def _alive(self, _request: web.Request) -> web.Response:
        return _answer(self._probes.why_not_alive())

    async def _ready(self, _request: web.Request) -> web.Response:
        return _answer(self._probes.why_not_ready())

    async def _tell(self, _request: web.Request) -> web.Response:
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=self._metrics.text(), headers=headers)


def _answer(wrong: str) -> web.Response:
    return web.Response(text=wrong or "ok", status=503 if wrong else 200)


@dataclass(frozen=True)
class ReachTimes:
    """How often it is asked, how long for an answer, and how long without one until the operator is not ready."""

    every_s: float = 5.0
    deadline_s: float = 5.0
    lost_after_s: float = 15.0


class ApiReach:
    """Asks the API server for its version now and then, on a connection of its own, and keeps when it answered."""

    def __init__(self, connection: Connection, times: ReachTimes | None = None) -> None:
        self._times = times or ReachTimes()
        self._api = ApiClient(
            connection, connections=1, timeout_s=self._times.deadline_s, retry=RetryPolicy(attempts=1)
        )
        self._answered_at: float | None = None
        self._problem = ""

    async def ask_forever(self) -> None:
        """Ask until cancelled."""
        try:
            while True:
                self._note(await self._ask())
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

    def _note(self, problem: str) -> None:
        if not problem:
            self._answered_at = time.monotonic()
        if problem and not self._problem:
            log.warning("the API server does not answer: %s", problem)
        elif self._problem and not problem:
            log.info("the API server answers again")
        self._problem = problem
