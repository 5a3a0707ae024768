"""A real Chromium without a window, controlled by the DevTools protocol."""

import asyncio
import base64
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from support.deadlines import patient

DEADLINE_S = patient(60.0)


class Tab:
    """One page. `complaints`: its error messages on the console, and uncaught exceptions."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self.complaints: list[str] = []

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        while True:
            message = json.loads((await self._socket.receive(DEADLINE_S)).data)
            self._note(message)
            if message.get("id") == self._number:
                assert "error" not in message, (method, message["error"])
                return dict(message["result"])

    async def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        found = await self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, (expression, found)
        return found["result"].get("value")

    async def open(self, path: Path, width: int = 1000, *, dark: bool = False) -> None:
        """Load a file on a screen of this width."""
        await self.visit(path.resolve().as_uri(), width, dark=dark)

    async def visit(self, url: str, width: int = 1000, *, dark: bool = False, ends_at: str = "") -> None:
        """Load `url` on a screen of this width. `ends_at`: URL after redirects."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        await self.ask("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.ask("Emulation.setEmulatedMedia", features=[scheme])
        await self.ask("Page.navigate", url=url)
        await self.until(f"location.href === {ends_at or url!r} && document.readyState === 'complete'")

    async def until(self, expression: str) -> None:
        """Wait until a JavaScript expression is true."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not await self._is_true(expression):
                    await asyncio.sleep(0.02)
        except TimeoutError:
            text = await self.value("document.body.innerText")
            raise AssertionError(f"not within {DEADLINE_S:g} s: {expression}; the page shows {text}") from None

    async def _is_true(self, expression: str) -> bool:
        """Return whether the expression is true; False on a page that is being left."""
        try:
            return await self.value(f"Boolean({expression})") is True
        except AssertionError as error:
            if "navigated" not in str(error):
                raise
            return False

    async def picture(self, path: Path, height: int = 900) -> None:
        """Write a PNG of the tab, from its top."""
        width = await self.value("innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        found = await self.ask("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    async def press(self, key: str) -> None:
        """Press and release a key."""
        codes = {"Tab": 9, "ArrowLeft": 37, "Home": 36, "Enter": 13}
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            shown = text if kind == "keyDown" else {}
            params = {"type": kind, "key": key, "windowsVirtualKeyCode": codes[key], **shown}
            await self.ask("Input.dispatchKeyEvent", **params)

    def _note(self, message: dict[str, Any]) -> None:
        params = message.get("params") or {}
        if message.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        if message.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.complaints.append(params["entry"]["text"])


@asynccontextmanager
async def open_browser(folder: Path, within_s: float = DEADLINE_S) -> AsyncIterator[Tab]:
    """Open a tab of a new browser with its files in `folder`. Skips the test without Chromium."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed: `make test` installs it where apt-get can")
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    options = ["--headless", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-port=0", *root]
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        program, *options, f"--user-data-dir={folder}", "about:blank", stdout=quiet, stderr=quiet
    )
    try:
        async with asyncio.timeout(within_s), aiohttp.ClientSession() as session:
            port = await _port(folder / "DevToolsActivePort", process)
            async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                (page,) = [found for found in await answer.json() if found["type"] == "page"]
            async with session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                tab = Tab(socket)
                for domain in ("Page", "Runtime", "Log"):
                    await tab.ask(f"{domain}.enable")
                yield tab
    finally:
        process.kill()
        await process.wait()


async def _port(file: Path, process: asyncio.subprocess.Process) -> int:
    while True:
        assert process.returncode is None, "chromium has ended"
        if file.exists() and (lines := file.read_text().splitlines()) and len(lines) > 1:
            return int(lines[0])
        await asyncio.sleep(0.05)
