"""Report of a job's launcher: its answer to GET /status, read over a forwarded port of its pod."""

from __future__ import annotations

import asyncio
import json

from ringtrain_operator import contract
from ringtrain_operator.cluster.api.errors import ApiError
from ringtrain_operator.cluster.api.forward import ApiForwardEnds, port_forward
from ringtrain_operator.cluster.api.resources import PODS
from ringtrain_operator.observe.model import LauncherReport
from ringtrain_operator.observe.pods import main_container, read_report, status_token

from .session import ClusterAccess

_ANSWER_S = 5.0


class _Answer(ApiForwardEnds):
    """Local end of a forwarded connection, which collects the launcher's answer to one request."""

    def __init__(self) -> None:
        self.answered = False
        self.received = b""

    async def read(self) -> bytes:
        """Wait until the task is cancelled."""
        await asyncio.Event().wait()
        return b""

    async def write(self, data: bytes) -> None:
        """Append `data` to the answer."""
        self.answered = True
        self.received += data


async def read_launcher_report(session: ClusterAccess, name: str) -> LauncherReport | None:
    """Return the running launcher's report; None if no launcher answers, or if the user may not read it."""
    pod_name, answer = f"{name}-launcher", _Answer()
    try:
        pod = await session.api.get(PODS, session.namespace, pod_name)
        if (pod.get("status") or {}).get("phase") != "Running":
            return None
        env = {entry["name"]: entry.get("value") for entry in main_container(pod).get("env") or ()}
        port = int(env.get(contract.ENV_STATUS_PORT) or contract.PORT_STATUS)
        head = f"GET /status HTTP/1.0\r\nAuthorization: Bearer {status_token(pod)}\r\n\r\n"
        async with asyncio.timeout(_ANSWER_S):
            await port_forward(session.api.connection, session.namespace, pod_name, port, head.encode(), answer)
        return read_report(json.loads(answer.received.partition(b"\r\n\r\n")[2]))
    except (ApiError, ValueError, TimeoutError):
        return None
