"""Whether this operator is alive and ready, and its metrics, over HTTP."""

from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from ringtrain_operator.cluster.metrics import Metrics


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
