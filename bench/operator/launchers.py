"""Launchers that answer /status, all by one server, and pods that say they run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from ringtrain_operator import contract
from ringtrain_operator.cluster.api.client import ApiClient
from ringtrain_operator.cluster.api.resources import JOBS, PODS

# An address of loopback's that no other program listens on: the port is the contract's.
ADDRESS = "127.77.0.1"


class Launchers:
    """Answers as every job's launcher. `steps`: each answer is a later step; else the same for ever."""

    def __init__(self) -> None:
        self.steps = False
        self.asked = 0
        self.world = 0

    async def status(self, _request: web.Request) -> web.Response:
        """The contract's /status of a gang that trains."""
        self.asked += 1
        now = time.time() if self.steps else 0.0
        progress = {"step": int(now * 10), "totalSteps": None, "samplesPerSecond": 100.0, "loss": 0.5}
        report: dict[str, Any] = {"version": 1, "attempt": 1, "phase": "Running", "progress": progress}
        return web.json_response({**report, "worldSize": self.world, "lastProgressTime": now, "startTime": 0.0})


@asynccontextmanager
async def answering_launchers() -> AsyncIterator[Launchers]:
    """Serve on the contract's status port."""
    launchers, app = Launchers(), web.Application()
    app.router.add_get("/status", launchers.status)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, ADDRESS, contract.PORT_STATUS).start()
    try:
        yield launchers
    finally:
        await runner.cleanup()


async def make_run(api: ApiClient, ns: str, launchers: Launchers, workers: int) -> None:
    """Say that every pod runs, as kubelets would; return when every job does."""
    launchers.world = workers
    pods = await api.select(PODS, ns)
    await asyncio.gather(*(api.patch(PODS, ns, p["metadata"]["name"], runs(p), subresource="status") for p in pods))
    while any((j.get("status") or {}).get("state") != "Running" for j in await api.select(JOBS, ns)):
        await asyncio.sleep(0.5)


def runs(pod: dict[str, Any]) -> dict[str, Any]:
    """The change of a pod's status with which a kubelet says that its main container runs."""
    name = pod["spec"]["containers"][0]["name"]
    state = {"running": {"startedAt": None}}
    main = {"name": name, "image": "train:1", "imageID": "", "ready": True, "restartCount": 0, "state": state}
    return {"status": {"phase": "Running", "podIP": ADDRESS, "podIPs": [{"ip": ADDRESS}], "containerStatuses": [main]}}
