"""Readiness: a pod with an HTTP probe is ready from its first good answer on."""

import asyncio
from typing import Any

import aiohttp

Json = dict[str, Any]


def readiness_url(pod: Json, address: str) -> str:
    """Where the first container's readiness probe asks; empty if it has none."""
    container = pod["spec"]["containers"][0]
    probe = (container.get("readinessProbe") or {}).get("httpGet")
    if not probe:
        return ""
    named = {p.get("name"): p["containerPort"] for p in container.get("ports") or []}
    return f"http://{address}:{named.get(probe['port'], probe['port'])}{probe.get('path', '/')}"


async def until_answers(url: str) -> None:
    """Return when `url` answers 200."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5.0)) as session:
        while True:
            try:
                async with session.get(url) as response:
                    if response.status == 200:
                        return
            except (aiohttp.ClientError, TimeoutError, OSError):
                pass  # it is starting still
            await asyncio.sleep(0.2)
