"""WebSocket streams to a pod, used to run commands in a container as `kubectl exec` does."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from .connection import ApiConnection
from .errors import ApiError, Unreachable, error_of
from .resources import PODS

if TYPE_CHECKING:
    import aiohttp

# Channels of the protocol v4.channel.k8s.io: the first byte of every message.
_PROTOCOL = "v4.channel.k8s.io"
# Exit code of a killed command; commands are killed when their container ends.
_KILLED = str(128 + signal.SIGKILL)
_STDOUT, _STDERR, _STATUS = 1, 2, 3


class CommandFailed(ApiError):
    """Error: a container's command failed or could not be started. The message is the command's stderr, or the API's
    reason if stderr is empty."""


@asynccontextmanager
async def pod_stream(
    connection: ApiConnection, path: str, query: Sequence[tuple[str, str]], what: str
) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """Open a WebSocket at `path` of the API server. `what`: name of the stream for error messages.

    Raises Unreachable if the connection fails or breaks, and another ApiError if the request is refused.
    """
    import aiohttp

    try:
        async with (
            connection.session() as session,
            session.ws_connect(
                connection.server + path,
                params=query,
                protocols=[_PROTOCOL],
                headers=connection.headers(),
                max_msg_size=0,
            ) as socket,
        ):
            yield socket
    except aiohttp.WSServerHandshakeError as exc:
        raise error_of(exc.status, {"message": f"{what} was refused with {exc.status}"}, None) from exc
    except (aiohttp.ClientError, TimeoutError, ConnectionError) as exc:
        raise Unreachable(f"{what}: {str(exc) or type(exc).__name__}") from exc


async def execute_in_pod(
    connection: ApiConnection, namespace: str, pod: str, container: str, command: Sequence[str]
) -> AsyncGenerator[bytes, None]:
    """Run a command in a container and yield its stdout as it arrives.

    Raises CommandFailed for an exit code other than 0, Unreachable if the command is killed or the stream ends before
    the command does, and another ApiError if the request is refused.
    """
    import aiohttp

    query = [("container", container), ("stdout", "true"), ("stderr", "true")]
    query += [("command", word) for word in command]
    stderr = b""
    async with pod_stream(connection, PODS.path(namespace, pod, "exec"), query, f"exec in pod {pod}") as socket:
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                continue
            channel, data = message.data[0], message.data[1:]
            if channel == _STDOUT and data:
                yield data
            elif channel == _STDERR:
                stderr += data
            elif channel == _STATUS and data:
                _check_pod_command(pod, json.loads(data), stderr)
                return
    raise Unreachable(f"exec in pod {pod}: the connection ended before the command had ended")


def _check_pod_command(pod: str, status: dict[str, Any], stderr: bytes) -> None:
    causes = (status.get("details") or {}).get("causes") or []
    if any(cause.get("reason") == "ExitCode" and cause.get("message") == _KILLED for cause in causes):
        raise Unreachable(f"exec in pod {pod}: the command was killed; has its container ended?")
    if status.get("status") != "Success":
        text = stderr.decode(errors="replace").strip().removeprefix("Error: ")
        raise CommandFailed(text or str(status.get("message") or "it failed"))
