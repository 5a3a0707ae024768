"""Local web server that shows the page of a job's launcher, across all attempts of the job."""

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
from .session import ClusterAccess, Json

_MOST_HEAD = 64 << 10  # the launcher's limit: browsers send the cookies of all programs on this host
_HEAD_S = 10.0
_REFUSED = "HTTP/1.0 401 Unauthorized\r\nContent-Type: text/plain\r\n\r\nthis page needs the token in its link\n"
_TOKEN = re.compile(rb"\b[0-9a-f]{64}\b")


@dataclass
class _ClientPageForward:
    """Forwarder of a browser's requests to the running launcher of a job.

    A request must contain a known token: the link's, or a launcher's token in its cookie. The token is replaced by the
    present launcher's.
    """

    session: ClusterAccess
    name: str
    link_token: str = field(default_factory=lambda: secrets.token_hex(32))
    _launcher_tokens: set[bytes] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection."""
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
                async with asyncio.timeout(_HEAD_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                await self._forward(head, ApiForwardEnds(reader, writer))
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _forward(self, head: bytes, ends: ApiForwardEnds) -> None:
        """Check the token in a request, replace it by the current launcher's token, and forward the request."""
        shown = {
            token
            for token in _TOKEN.findall(head)
            if any(secrets.compare_digest(token, own) for own in (self.link_token.encode(), *self._launcher_tokens))
        }
        if not shown:
            await ends.write(_REFUSED.encode())
            return
        try:
            port, token = await self.launcher_endpoint()
            self._launcher_tokens.add(token)
            for old in shown:
                head = head.replace(old, token)
            await port_forward(
                self.session.api.connection, self.session.namespace, f"{self.name}-launcher", port, head, ends
            )
        except ApiError as exc:
            if not ends.answered:
                await ends.write(_unavailable_response(self.name, exc).encode())

    async def launcher_endpoint(self) -> tuple[int, bytes]:
        """Return the status port of the current launcher and the token of its page. Raises NotFound if none runs."""
        pod: Json = {}
        with suppress(NotFound):
            pod = await self.session.api.get(PODS, self.session.namespace, f"{self.name}-launcher")
        if (pod.get("status") or {}).get("phase") != "Running":
            job = f"{self.session.namespace}/{self.name}"
            wait = (
                f"the page appears when it does, and `dtj why -n {job.replace('/', ' ')}` shows what the job waits for"
            )
            raise NotFound(f"the launcher of {job} does not run; {wait}")
        env = {entry["name"]: entry.get("value") for entry in main_container(pod).get("env") or ()}
        port = int(env.get(contract.ENV_STATUS_PORT) or contract.PORT_STATUS)
        return port, page_token(status_token(pod)).encode()


def _unavailable_response(name: str, why: ApiError) -> str:
    # Browsers reload the page: the launcher, or the next attempt's, may be starting.
    """Return an HTTP response with the error `why` of the launcher, which makes the browser reload the page."""
    about = "" if isinstance(why, NotFound) else f"the launcher of {name} cannot be reached: "
    text = f"{about}{why}; this page tries again\n"
    head = (
        "HTTP/1.0 503 Service Unavailable",
        "Content-Type: text/plain",
        "Refresh: 2",
        "Cache-Control: no-store",
    )
    return "\r\n".join((*head, "", text))


@asynccontextmanager
async def serving_page(session: ClusterAccess, name: str, port: int = 0) -> AsyncGenerator[str]:
    """Serve the page of job `name` on a local port while the block runs; yield the link to it.

    `port`: port on this machine; 0 selects a free port. Raises NotFound if the job does not exist, JobEnded if no
    launcher will run.
    """
    job = await session.api.get(JOBS, session.namespace, name)
    forward = _ClientPageForward(session, name)
    try:
        await forward.launcher_endpoint()
    except NotFound as exc:
        if (state := state_of(job)) not in ENDED:
            session.tell(f"{exc} ({state})")
        else:
            raise JobEnded(
                f"{session.namespace}/{name} has ended ({state}), and so has the launcher that serves its page; "
                "see dtj why and dtj logs, and docs/page.md for a page that is stored with the logs"
            ) from exc
    server = await asyncio.start_server(forward.serve, "127.0.0.1", port, limit=_MOST_HEAD)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/?token={forward.link_token}"
