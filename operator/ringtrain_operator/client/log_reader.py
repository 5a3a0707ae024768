"""A pod that reads a job's log store when no launcher runs: made, waited for, and deleted whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator
from functools import partial

from ..build.agent import ANNOTATION_IMAGE, PROGRAM
from ..build.log_reader import LABEL_READER, build_log_reader_pod
from ..cluster.admission import create_admitted
from ..cluster.api.errors import ApiError, Forbidden, NotFound
from ..cluster.api.resources import PODS, SERVICES
from ..errors import OperatorError
from ..observe.model import PodView
from ..observe.pods import view_pod
from ..spec.job import Job
from .session import ClusterAccess

# The longest that one log may take to read. A reader that its dtj could not delete ends then by itself.
LIVES_S = 3600
# The image may have to be pulled, and the claim to be attached.
_STARTS_WITHIN_S = 180.0
_SAYS_AFTER_S = 5.0
_LOOKS_EVERY_S = 0.2


class ReaderNotStarted(OperatorError):
    """The pod that would read the log store does not run; the message says why."""


@contextlib.asynccontextmanager
async def log_reader(session: ClusterAccess, job: Job, attempt: int) -> AsyncIterator[tuple[str, str]]:
    """A running pod that mounts the job's log store, for as long as the block lasts: its name, its `ringtrain`.

    Raises ReaderNotStarted, and Forbidden where the user may not create pods.
    """
    await _delete_ended(session, job)
    agent_image = await _agent_image(session, job)
    pod = build_log_reader_pod(job, attempt, secrets.token_hex(3), LIVES_S, agent_image)
    name = pod["metadata"]["name"]
    try:
        await create_admitted(partial(session.api.create, PODS, job.namespace), pod)
        await _until_log_reader_runs(session, job.namespace, name)
        yield name, PROGRAM if agent_image else "ringtrain"
    finally:
        await _delete_log_reader(session, job.namespace, name)


async def _agent_image(session: ClusterAccess, job: Job) -> str:
    """The image that has the job's agent, as the operator has noted it; empty: the image of its pods."""
    try:
        service = await session.api.get(SERVICES, job.namespace, job.name)
    except (NotFound, Forbidden):
        return ""
    return str((service["metadata"].get("annotations") or {}).get(ANNOTATION_IMAGE) or "")


async def _delete_log_reader(session: ClusterAccess, namespace: str, name: str) -> None:
    """Delete the pod, which may not be there: its creation may have been refused."""
    try:
        await session.api.delete(PODS, namespace, name)
    except NotFound:
        pass
    except ApiError as exc:  # what was read is read
        session.tell(f"pod {name} could not be deleted ({exc}); it ends by itself within {LIVES_S} s")


async def _delete_ended(session: ClusterAccess, job: Job) -> None:
    """Readers of this job whose dtj was killed before it could delete them, once they have ended."""
    with contextlib.suppress(ApiError):
        for pod in await session.api.select(PODS, job.namespace, labels=f"{LABEL_READER}={job.name}"):
            if view_pod(pod).phase in ("Succeeded", "Failed"):
                await session.api.delete(PODS, job.namespace, pod["metadata"]["name"])


async def _until_log_reader_runs(session: ClusterAccess, namespace: str, name: str) -> None:
    began, reported = time.monotonic(), ""
    while True:
        try:
            pod = view_pod(await session.api.get(PODS, namespace, name))
        except NotFound as exc:
            raise ReaderNotStarted(f"pod {name}, which was to read the log store, was deleted") from exc
        waited_s, why = time.monotonic() - began, _why_log_reader_waits(pod)
        if pod.phase == "Running" and pod.ready:
            return
        if pod.phase in ("Succeeded", "Failed") or waited_s > _STARTS_WITHIN_S:
            text = f"pod {name}, which was to read the log store, did not start in {waited_s:.0f} s: {why}"
            raise ReaderNotStarted(text)
        if waited_s > _SAYS_AFTER_S and why != reported:
            session.tell(f"waiting for pod {name}, which reads the log store: {why}")
            reported = why
        await asyncio.sleep(_LOOKS_EVERY_S)


def _why_log_reader_waits(pod: PodView) -> str:
    reason = pod.waiting or pod.reason or pod.exit_reason
    message = pod.waiting_message or pod.message or pod.termination_message
    return ": ".join(filter(None, (reason, message))) or f"it is {pod.phase}, without a word why"
