"""A launcher by script: what answers /status where the operator asks for it."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from ringtrain_operator import contract

Json = dict[str, Any]


def report(attempt: int = 1, phase: str = "Running", world: int = 2, **more: Any) -> Json:
    """A launcher's /status (docs/contract.md); `progress` is None unless given."""
    return {
        "version": 1,
        "attempt": attempt,
        "phase": phase,
        "worldSize": world,
        "workers": [{"index": i, "registered": phase != "Waiting"} for i in range(world)],
        "ranks": [],
        "progress": None,
        "lastProgressTime": None,
        "runningSince": None if phase == "Waiting" else time.time(),
        "slowest": None,
        **more,
    }


@asynccontextmanager
async def answering(address: str, document: Json, token: str) -> AsyncIterator[None]:
    """Answer /status at `address` with `document`, which may be changed meanwhile, to who shows `token`.

    An elastic launcher is told at /workers how many are wanted: `document["elastic"]["wanted"]` then.
    """
    app = web.Application()

    async def status(request: web.Request) -> web.Response:
        if "brief" not in request.query:  # whoever asks again and again asks for the answer that stays short
            return web.Response(status=400)
        shown = request.headers.get("Authorization")
        return web.json_response(document) if shown == f"Bearer {token}" else web.Response(status=401)

    async def workers(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {token}":
            return web.Response(status=401)
        if "refusal" in document:
            if document["refusal"] is None and request.transport is not None:  # the connection fails
                request.transport.abort()
            code, text = document["refusal"] or (500, "")
            return web.Response(status=code, text=text)
        document["elastic"]["wanted"] = (await request.json())["workers"]
        return web.Response(status=204)

    app.router.add_get("/status", status)
    app.router.add_put("/workers", workers)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    await web.TCPSite(runner, address, contract.PORT_STATUS).start()
    try:
        yield
    finally:
        await runner.cleanup()
