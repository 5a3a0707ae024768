"""Streams of a pod over WebSockets; one on which a command runs in a container, as `kubectl exec` has it."""

import json
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from .connection import ApiConnection
from .errors import ApiError, Unreachable, error_of
from .resources import PODS

# Channels of the protocol v4.channel.k8s.io: the first byte of every message.
_PROTOCOL = "v4.channel.k8s.io"
# Of a command that was killed, as all are when their container ends.
_KILLED = str(128 + signal.SIGKILL)
_STDOUT, _STDERR, _STATUS = 1, 2, 3


class CommandFailed(ApiError):
    """The command ended badly, or could not be started; the message is what it said on stderr."""


@asynccontextmanager
async def pod_stream(
    connection: ApiConnection, path: str, query: Sequence[tuple[str, str]], what: str
) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """The stream at `path` of the API server; `what` it is, in messages.

    Raises Unreachable when it cannot be had or breaks, and the ApiError of a request that was refused.
    """
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
    """The command's stdout as it comes.

    Raises CommandFailed for another exit code than 0, Unreachable when the stream ends before the command has, and
    the ApiError of a request that was refused.
    """
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
    raise Unreachable(f"exec in pod {pod}: the stream ended before the command")


def _check_pod_command(pod: str, status: dict[str, Any], stderr: bytes) -> None:
    causes = (status.get("details") or {}).get("causes") or []
    if any(cause.get("reason") == "ExitCode" and cause.get("message") == _KILLED for cause in causes):
        raise Unreachable(f"exec in pod {pod}: the command was killed; has its container ended?")
    if status.get("status") != "Success":
        text = stderr.decode(errors="replace").strip().removeprefix("Error: ")
        raise CommandFailed(text or str(status.get("message") or "it failed"))
