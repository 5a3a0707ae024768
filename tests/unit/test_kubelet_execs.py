"""The tests' own kubelet: what it starts beside a container is over when its reader is, or the kubelet."""

import asyncio
import sys
from collections.abc import Sequence

import aiohttp
import pytest
from aiohttp import web
from support.kubelet.execs import Beside, serve_exec

SILENT = "import time; time.sleep(600)"
# More than pipes and connections hold: what is said last is still in the pipe when the reader goes.
LOUD = "import sys; sys.stdout.write('x' * (64 << 20))"


@pytest.mark.parametrize("program", [SILENT, LOUD], ids=["silent", "loud"])
@pytest.mark.parametrize("who", ["reader", "kubelet"])
async def test_a_command_beside_a_container_is_closed_with_its_reader(program: str, who: str) -> None:
    """Its process ends, and its pipes are closed before the event loop is."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=pipe, stderr=pipe)
    transport = process._transport  # type: ignore[attr-defined]

    async def start(namespace: str, pod: str, command: Sequence[str]) -> Beside:
        return Beside(process, asyncio.Event())

    async def answer(request: web.Request) -> web.StreamResponse:
        return await serve_exec(request, start)

    app = web.Application()
    app.router.add_get("/exec/{namespace}/{pod}/{container}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/exec/n/p/c"
    async with aiohttp.ClientSession() as session:
        socket = await session.ws_connect(f"{url}?command=x")
        if who == "reader":
            await socket.close()
            async with asyncio.timeout(60):
                await process.wait()
        await runner.cleanup()
    async with asyncio.timeout(60):
        assert await process.wait() is not None
    assert transport.is_closing()
