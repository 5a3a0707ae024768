"""Log of an attempt whose launcher has ended: the launcher's output if it is complete, otherwise the log store.

When no launcher runs, a temporary pod reads the job's log store. The pod is always deleted afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import IO

from ringtrain_operator import contract
from ringtrain_operator.build.agent import ANNOTATION_IMAGE, PROGRAM
from ringtrain_operator.build.log_reader import CONTAINER, LABEL_READER, build_log_reader_pod
from ringtrain_operator.cluster.api.errors import ApiError, Forbidden, NotFound, Unprocessable
from ringtrain_operator.cluster.api.execute import execute_in_pod
from ringtrain_operator.cluster.api.resources import PODS, SERVICES
from ringtrain_operator.cluster.apply import create_admitted
from ringtrain_operator.errors import OperatorError, counted
from ringtrain_operator.observe.model import PodView
from ringtrain_operator.observe.pods import view_pod
from ringtrain_operator.spec.job import Job
from ringtrain_operator.spec.parse import parse_job
from ringtrain_operator.spec.training_template import resolved_job_spec

from .following import ENDED, state_of
from .launcher_output import (
    MissingLauncherOutput,
    PrintedLauncherOutput,
    ShownLauncherOutput,
    WantedLauncherOutput,
    launcher_output,
    missing_lines,
)
from .session import ClusterAccess, Json

# More than the default size of a node's file with a container's output.
_IN_MEMORY = 16 << 20
_CHUNK = 1 << 20


class LogsIncomplete(OperatorError):
    """Error: lines of ranks are missing in the launcher's output. The message says how many, and where they are."""


class LogsElsewhere(OperatorError):
    """Error: no pod has the requested log. The message says where the log is stored, or why it is not stored."""


def attempt_of_pod(pod: Json) -> int:
    """Return the number of the attempt to which a launcher's pod belongs."""
    return int(pod["metadata"].get("labels", {}).get(contract.LABEL_ATTEMPT) or 0)


async def read_ended(
    session: ClusterAccess,
    wanted: WantedLauncherOutput,
    job: Json,
    pod: Json | None,
    printed: PrintedLauncherOutput,
) -> AsyncGenerator[bytes, None]:
    """Yield the log of the requested attempt without the part that was already `printed`.

    `pod`: the launcher's pod; None if it does not exist. Raises LogsIncomplete after the lines that were found, or
    LogsElsewhere if no lines were found.
    """
    attempt = wanted.attempt or (attempt_of_pod(pod) if pod else present_attempt(job))
    own = pod if pod and attempt_of_pod(pod) == attempt else None
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as output:
        missing, reason = None, ""
        if own:
            missing, reason = await _store_output(session, wanted, own, output, printed)
        if _is_output_short(missing) and has_log_storage(job) and (own or _has_attempt_ended(job, attempt)):
            begun = False
            try:
                async with aclosing(read_log_store(session, wanted, job, attempt, printed)) as chunks:
                    async for chunk in chunks:
                        begun = True
                        yield chunk
                return
            except OperatorError as exc:
                # These errors concern the reader's pod, not the log store.
                if begun or not isinstance(exc, ReaderNotStarted | Forbidden | Unprocessable):
                    raise
                reason += f"; {exc}"
        while chunk := output.read(_CHUNK):
            yield chunk
    is_pending = own is not None and (own.get("status") or {}).get("phase") == "Pending"
    if missing is None or (is_pending and missing.is_guess):
        if is_pending or (not pod and has_not_begun(job, attempt)):
            text = f"attempt {max(1, attempt)} of {wanted.name} has not begun and has no logs"
            raise LogsElsewhere(f"{text}; run dtj why {wanted.name} for the reason")
        if attempt > present_attempt(job):
            raise LogsElsewhere(
                f"--attempt {attempt}: {wanted.name} has only {counted(present_attempt(job), 'attempt')}"
            )
        if own:
            found = f"the output of {wanted.pod} cannot be read"
        elif pod:
            found = f"the launcher of {wanted.name} is of attempt {attempt_of_pod(pod)}"
        else:
            found = f"{wanted.name} has no launcher now"
        raise LogsElsewhere(f"{found}; {storage_text(job, attempt)}{reason}")
    if missing:
        raise LogsIncomplete(f"{missing}; {storage_text(job, attempt)}{reason}")
    if missing.is_guess:
        text = f"the launcher of {wanted.name} did not report how many lines it wrote: some may be missing"
        session.tell(text + reason)


def _is_output_short(missing: MissingLauncherOutput | None) -> bool:
    """Return whether the launcher's output is absent or may lack lines."""
    return missing is None or bool(missing) or missing.is_guess


async def _store_output(
    session: ClusterAccess,
    wanted: WantedLauncherOutput,
    pod: Json,
    stored: IO[bytes],
    printed: PrintedLauncherOutput,
) -> tuple[MissingLauncherOutput | None, str]:
    """Write the launcher's output into `stored`.

    Returns a pair: the lines that are missing in the output, and an empty text. If the output cannot be read, returns
    None and the reason.
    """
    shown = ShownLauncherOutput()
    try:
        output = launcher_output(session, wanted, shown, printed)
        async with aclosing(output) as lines:
            async for line in lines:
                stored.write(line)
    except ApiError as exc:  # the node was removed, or has deleted the output
        if isinstance(exc, Forbidden) or (pod.get("status") or {}).get("phase") == "Pending":
            raise
        stored.seek(0)
        stored.truncate()
        return None, f"; {exc}"
    stored.seek(0)
    ended = await session.api.get(PODS, session.namespace, wanted.pod) if wanted.follow else pod
    return missing_lines(ended, attempt_of_pod(pod), wanted, shown), ""


async def read_log_store(
    session: ClusterAccess, wanted: WantedLauncherOutput, job: Json, attempt: int, printed: PrintedLauncherOutput
) -> AsyncGenerator[bytes, None]:
    """Yield an attempt's log from the log store, without the part that was already `printed`."""
    skip = printed.size
    async with log_reader(session, parse_job(job, templates=False), present_attempt(job)) as (reader, program):
        command = wanted.command(program, attempt, follow=False)
        stream = execute_in_pod(session.api.connection, session.namespace, reader, CONTAINER, command)
        async with aclosing(stream) as chunks:
            async for chunk in chunks:
                rest, skip = chunk[skip:], max(0, skip - len(chunk))
                if rest:
                    yield rest


def present_attempt(job: Json) -> int:
    """Return the number of the job's current attempt; 0 before the first."""
    return int((job.get("status") or {}).get("attempt") or 0)


def has_not_begun(job: Json, attempt: int) -> bool:
    """Return whether `attempt` is the current one and has no launcher yet. An attempt has a number before it has
    pods."""
    return attempt == present_attempt(job) and (not attempt or state_of(job) in ("Pending", "Queued", "Restarting"))


def _has_attempt_ended(job: Json, attempt: int) -> bool:
    """Return whether the attempt has ended, so that its log gets no more lines."""
    return 0 < attempt < present_attempt(job) or (attempt > 0 and state_of(job) in (*ENDED, "Suspended"))


def log_claim_of(job: Json) -> str:
    """Return the name of the PersistentVolumeClaim that stores the job's logs; empty if there is none."""
    claim = (resolved_job_spec(job)["spec"].get("logs") or {}).get("persistentVolumeClaim") or {}
    return str(claim.get("claimName") or "")


def uri_of(job: Json) -> str:
    """Return the object store's URI to which the job's logs are copied; empty if there is none."""
    return str((resolved_job_spec(job)["spec"].get("logs") or {}).get("uri") or "")


def has_log_storage(job: Json) -> bool:
    """Return whether the job's logs are still available after its pods are deleted."""
    return bool(log_claim_of(job) or uri_of(job))


def storage_text(job: Json, attempt: int | None) -> str:
    """Return a sentence that says where an attempt's log is after its pods are deleted."""
    meta = job["metadata"]
    folder = f"{meta['namespace']}/{meta['name']}/{attempt or 1}/"
    claim = log_claim_of(job)
    if claim:
        return f"attempt {attempt or 1} is stored on the volume of claim {claim}, in {folder}job.log and rank-*.log"
    uri = uri_of(job)
    if uri:
        folder = f"{meta['namespace']}/{meta['name']}-{meta['uid']}/{attempt or 1:04d}/"
        return f"attempt {attempt or 1} is stored below {uri.rstrip('/')}/{folder}"
    tail = ((job.get("status") or {}).get("failure") or {}).get("logTail")
    hint = f"; the failed rank's last lines are in the job's status (dtj why {meta['name']})" if tail else ""
    return f"its logs were deleted with its pod, because spec.logs names neither a claim nor a uri{hint}"


# Maximum time for reading one log. A reader's pod that dtj could not delete ends after it.
LIVES_S = 3600
# Enough for pulling the image and attaching the volume.
_STARTS_WITHIN_S = 180.0
_REPORT_AFTER_S = 5.0
_POLL_S = 0.2


class ReaderNotStarted(OperatorError):
    """Error: the pod that reads the log store does not start. The message has the reason."""


@contextlib.asynccontextmanager
async def log_reader(session: ClusterAccess, job: Job, attempt: int) -> AsyncIterator[tuple[str, str]]:
    """Run a pod that mounts the job's log store; yield its name and the path of its `ringtrain` program.

    The pod is deleted at the end. Raises ReaderNotStarted, or Forbidden if the user may not create pods.
    """
    await _delete_ended_readers(session, job)
    agent_image = await _agent_image(session, job)
    pod = build_log_reader_pod(job, attempt, secrets.token_hex(3), LIVES_S, agent_image)
    name = pod["metadata"]["name"]
    try:
        await create_admitted(partial(session.api.create, PODS, job.namespace), pod)
        await _await_log_reader(session, job.namespace, name)
        yield name, PROGRAM if agent_image else "ringtrain"
    finally:
        await _delete_reader(session, job.namespace, name)


async def _agent_image(session: ClusterAccess, job: Job) -> str:
    """Return the image from which the operator adds the agent; empty if it is unknown, or if the image of the job's
    pods contains the agent."""
    try:
        service = await session.api.get(SERVICES, job.namespace, job.name)
    except (NotFound, Forbidden):
        return ""
    return str((service["metadata"].get("annotations") or {}).get(ANNOTATION_IMAGE) or "")


async def _delete_reader(session: ClusterAccess, namespace: str, name: str) -> None:
    """Delete the pod that reads the log store. It is no error if the pod does not exist, because its creation may have
    been refused."""
    try:
        await session.api.delete(PODS, namespace, name)
    except NotFound:
        pass
    except ApiError as exc:  # not an error for the user, who has the log
        session.tell(f"pod {name} could not be deleted ({exc}); it ends within {LIVES_S} s")


async def _delete_ended_readers(session: ClusterAccess, job: Job) -> None:
    """Delete ended pods that read this job's log store and that a killed dtj has left behind."""
    with contextlib.suppress(ApiError):
        for pod in await session.api.select(PODS, job.namespace, labels=f"{LABEL_READER}={job.name}"):
            if view_pod(pod).phase in ("Succeeded", "Failed"):
                await session.api.delete(PODS, job.namespace, pod["metadata"]["name"])


async def _await_log_reader(session: ClusterAccess, namespace: str, name: str) -> None:
    """Wait until the pod that reads the log store runs. Raises ReaderNotStarted if it ends, is deleted or takes too
    long."""
    began, reported = time.monotonic(), ""
    while True:
        try:
            pod = view_pod(await session.api.get(PODS, namespace, name))
        except NotFound as exc:
            raise ReaderNotStarted(f"pod {name}, which reads the log store, was deleted") from exc
        waited_s, cause = time.monotonic() - began, _wait_reason(pod)
        if pod.phase == "Running" and pod.main.ready:
            return
        if pod.phase in ("Succeeded", "Failed") or waited_s > _STARTS_WITHIN_S:
            text = f"pod {name}, which reads the log store, did not start in {waited_s:.0f} s: {cause}"
            raise ReaderNotStarted(text)
        if waited_s > _REPORT_AFTER_S and cause != reported:
            session.tell(f"waiting for pod {name}, which reads the log store: {cause}")
            reported = cause
        await asyncio.sleep(_POLL_S)


def _wait_reason(pod: PodView) -> str:
    """Return the reason why the pod that reads the log store does not run yet."""
    reason = pod.wait.reason or pod.state.reason or pod.end.reason
    message = pod.wait.message or pod.state.message or pod.end.message
    return ": ".join(filter(None, (reason, message))) or f"it is {pod.phase}, without a reason"
