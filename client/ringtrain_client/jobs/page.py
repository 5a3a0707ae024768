"""The page of a job's launcher, on a port of this machine, over all its attempts."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from ringtrain_operator import contract
from ringtrain_operator.cluster.api.errors import ApiError, NotFound
from ringtrain_operator.cluster.api.forward import ApiForwardEnds, port_forward
from ringtrain_operator.cluster.api.resources import JOBS, PODS
from ringtrain_operator.observe.pods import main_container, page_token, status_token

from .errors import JobEnded
from .following import ENDED, state_of
from .session import ClusterAccess

_MOST_HEAD = 64 << 10  # as the launcher: browsers send the cookies of all programs on this host
_HEAD_S = 10.0
_REFUSED = "HTTP/1.0 401 Unauthorized\r\nContent-Type: text/plain\r\n\r\nthis page asks for the token in its link\n"
_TOKEN = re.compile(rb"\b[0-9a-f]{64}\b")


@dataclass
class _ClientPageForward:
    """Passes requests on to the launcher that runs now. A request needs a token that was given out: the link's, or
    that of a launcher, in its cookie. The present launcher's takes its place."""

    session: ClusterAccess
    name: str
    link_token: str = field(default_factory=lambda: secrets.token_hex(32))
    _given: set[bytes] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection."""
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
                async with asyncio.timeout(_HEAD_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                await self._pass_on(head, ApiForwardEnds(reader, writer))
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _pass_on(self, head: bytes, ends: ApiForwardEnds) -> None:
        shown = {
            token
            for token in _TOKEN.findall(head)
            if any(secrets.compare_digest(token, own) for own in (self.link_token.encode(), *self._given))
        }
        if not shown:
            await ends.write(_REFUSED.encode())
            return
        try:
            port, token = await self.launcher()
            self._given.add(token)
            for old in shown:
                head = head.replace(old, token)
            await port_forward(
                self.session.api.connection, self.session.namespace, f"{self.name}-launcher", port, head, ends
            )
        except ApiError as exc:
            if not ends.answered:
                await ends.write(_page_not_there(self.name, exc).encode())

    async def launcher(self) -> tuple[int, bytes]:
        """The port of the present launcher, and its page's token. Raises NotFound where no launcher runs."""
        pod = await self.session.api.get(PODS, self.session.namespace, f"{self.name}-launcher")
        if (pod.get("status") or {}).get("phase") != "Running":
            raise NotFound(f"no launcher of {self.name} runs")
        env = {entry["name"]: entry.get("value") for entry in main_container(pod).get("env") or ()}
        port = int(env.get(contract.ENV_STATUS_PORT) or contract.PORT_STATUS)
        return port, page_token(status_token(pod)).encode()


def _page_not_there(name: str, why: ApiError) -> str:
    # Looked for again by itself: a launcher starts, or the next attempt's does.
    text = f"the launcher of {name} cannot be reached: {why}; this page tries again\n"
    head = (
        "HTTP/1.0 503 Service Unavailable",
        "Content-Type: text/plain",
        "Refresh: 2",
        "Cache-Control: no-store",
    )
    return "\r\n".join((*head, "", text))


@asynccontextmanager
async def serving_page(session: ClusterAccess, name: str, port: int = 0) -> AsyncGenerator[str]:
    """The link to the page of job `name`, which works until this ends.

    `port`: of this machine, 0 for a free one. Raises NotFound without that job, JobEnded if no launcher will come.
    """
    job = await session.api.get(JOBS, session.namespace, name)
    forward = _ClientPageForward(session, name)
    if (state := state_of(job)) in ENDED:
        try:
            await forward.launcher()
        except NotFound as exc:
            raise JobEnded(
                f"{session.namespace}/{name} has ended ({state}), and its page with its launcher; dtj why and "
                "dtj logs have what is left, and docs/page.md says how a run's page is kept"
            ) from exc
    server = await asyncio.start_server(forward.serve, "127.0.0.1", port, limit=_MOST_HEAD)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/?token={forward.link_token}"
