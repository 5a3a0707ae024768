"""The log of an attempt whose launcher is over: its output where that is whole, else the store on the claim.

The pod that reads a job's log store when no launcher runs is made, waited for, and deleted whatever happens.
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
from ringtrain_operator.cluster.admission import create_admitted
from ringtrain_operator.cluster.api.errors import ApiError, Forbidden, NotFound, Unprocessable
from ringtrain_operator.cluster.api.execute import execute_in_pod
from ringtrain_operator.cluster.api.resources import PODS, SERVICES
from ringtrain_operator.errors import OperatorError
from ringtrain_operator.observe.model import PodView
from ringtrain_operator.observe.pods import view_pod
from ringtrain_operator.spec.job import Job
from ringtrain_operator.spec.parse import parse_job
from ringtrain_operator.spec.training_template import resolved_job_spec
from ringtrain_operator.status.situation import counted

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

# More than a node's file of a container's output has, unless the node is told so.
_IN_MEMORY = 16 << 20
_CHUNK = 1 << 20


class LogsIncomplete(OperatorError):
    """Ranks' lines are no longer in the launcher's output; the message says how many and where they are."""


class LogsElsewhere(OperatorError):
    """The log that was asked for is not in a pod; the message says where it is."""


def attempt_of_log_pod(pod: Json) -> int:
    """The attempt that a launcher's pod is of."""
    return int(pod["metadata"].get("labels", {}).get(contract.LABEL_ATTEMPT) or 0)


async def read_ended(
    session: ClusterAccess,
    wanted: WantedLauncherOutput,
    job: Json,
    pod: Json | None,
    printed: PrintedLauncherOutput,
) -> AsyncGenerator[bytes, None]:
    """The log of the attempt that is wanted. `pod`: the launcher's, None if there is none. `printed` is left out.

    Raises LogsIncomplete after what there is, or LogsElsewhere when there is nothing.
    """
    attempt = wanted.attempt or (attempt_of_log_pod(pod) if pod else _present_attempt(job))
    own = pod if pod and attempt_of_log_pod(pod) == attempt else None
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as kept:
        missing, why_not = None, ""
        if own:
            missing, why_not = await _keep_output(session, wanted, own, kept, printed)
        if _is_output_short(missing) and is_log_kept(job) and (own or _is_over(job, attempt)):
            begun = False
            try:
                async with aclosing(from_claim(session, wanted, job, attempt, printed)) as chunks:
                    async for chunk in chunks:
                        begun = True
                        yield chunk
                return
            except OperatorError as exc:
                # These say that no pod can read the store here, and nothing of the store.
                if begun or not isinstance(exc, ReaderNotStarted | Forbidden | Unprocessable):
                    raise
                why_not += f"; {exc}"
        while chunk := kept.read(_CHUNK):
            yield chunk
    if missing is None:
        if not pod and _has_not_begun(job, attempt):
            text = f"attempt {max(1, attempt)} of {wanted.name} has not begun, and has no logs"
            raise LogsElsewhere(f"{text}; dtj why {wanted.name} says what it waits for")
        if attempt > _present_attempt(job):
            raise LogsElsewhere(
                f"--attempt {attempt}: {wanted.name} has had {counted(_present_attempt(job), 'attempt')}"
            )
        if own:
            found = f"nothing can be read of the output of {wanted.pod}"
        elif pod:
            found = f"the launcher of {wanted.name} is of attempt {attempt_of_log_pod(pod)}"
        else:
            found = f"{wanted.name} has no launcher now"
        raise LogsElsewhere(f"{found}; {where_kept(job, attempt)}{why_not}")
    if missing:
        raise LogsIncomplete(f"{missing}; {where_kept(job, attempt)}{why_not}")
    if missing.is_guess:
        text = f"the launcher of {wanted.name} left no word of how many lines it wrote: some may be missing"
        session.tell(text + why_not)


def _is_output_short(missing: MissingLauncherOutput | None) -> bool:
    """Whether lines are not in the launcher's output, or that can't be known, or there is none."""
    return missing is None or bool(missing) or missing.is_guess


async def _keep_output(
    session: ClusterAccess,
    wanted: WantedLauncherOutput,
    pod: Json,
    kept: IO[bytes],
    printed: PrintedLauncherOutput,
) -> tuple[MissingLauncherOutput | None, str]:
    """Write the launcher's output into `kept`, and say what is missing there; None and why if no node answers."""
    shown = ShownLauncherOutput()
    try:
        output = launcher_output(session, wanted, shown, printed)
        async with aclosing(output) as lines:
            async for line in lines:
                kept.write(line)
    except ApiError as exc:  # the node is gone, or has thrown the output away
        if isinstance(exc, Forbidden) or (pod.get("status") or {}).get("phase") == "Pending":
            raise
        kept.seek(0)
        kept.truncate()
        return None, f"; {exc}"
    kept.seek(0)
    ended = await session.api.get(PODS, session.namespace, wanted.pod) if wanted.follow else pod
    return missing_lines(ended, attempt_of_log_pod(pod), wanted, shown), ""


async def from_claim(
    session: ClusterAccess, wanted: WantedLauncherOutput, job: Json, attempt: int, printed: PrintedLauncherOutput
) -> AsyncGenerator[bytes, None]:
    """What the store has on the job's claim, without what was printed."""
    skip = printed.size
    async with log_reader(session, parse_job(job, templates=False), _present_attempt(job)) as (reader, program):
        command = wanted.command(program, attempt, follow=False)
        stream = execute_in_pod(session.api.connection, session.namespace, reader, CONTAINER, command)
        async with aclosing(stream) as chunks:
            async for chunk in chunks:
                rest, skip = chunk[skip:], max(0, skip - len(chunk))
                if rest:
                    yield rest


def _present_attempt(job: Json) -> int:
    return int((job.get("status") or {}).get("attempt") or 0)


def _has_not_begun(job: Json, attempt: int) -> bool:
    """Whether the present attempt, which has no launcher, has never had one: it is numbered before it has pods."""
    return attempt == _present_attempt(job) and (not attempt or state_of(job) in ("Pending", "Queued", "Restarting"))


def _is_over(job: Json, attempt: int) -> bool:
    """Whether that attempt writes no more."""
    return 0 < attempt < _present_attempt(job) or (attempt > 0 and state_of(job) in (*ENDED, "Suspended"))


def log_claim_of(job: Json) -> str:
    """The claim that keeps the job's logs; empty if none does."""
    claim = (resolved_job_spec(job)["spec"].get("logs") or {}).get("persistentVolumeClaim") or {}
    return str(claim.get("claimName") or "")


def uri_of(job: Json) -> str:
    """The place in an object store to which the job's logs are copied; empty if there is none."""
    return str((resolved_job_spec(job)["spec"].get("logs") or {}).get("uri") or "")


def is_log_kept(job: Json) -> bool:
    """Whether the job's logs outlive its pods."""
    return bool(log_claim_of(job) or uri_of(job))


def where_kept(job: Json, attempt: int | None) -> str:
    """Where the log of an attempt lies when its pods are gone."""
    meta = job["metadata"]
    folder = f"{meta['namespace']}/{meta['name']}/{attempt or 1}/"
    claim = log_claim_of(job)
    if claim:
        return f"attempt {attempt or 1} is kept on the volume of claim {claim}, in {folder}job.log and rank-*.log"
    uri = uri_of(job)
    if uri:
        folder = f"{meta['namespace']}/{meta['name']}-{meta['uid']}/{attempt or 1:04d}/"
        return f"attempt {attempt or 1} is kept below {uri.rstrip('/')}/{folder}"
    tail = ((job.get("status") or {}).get("failure") or {}).get("logTail")
    hint = f"; the failed rank's last lines are in its status (dtj why {meta['name']})" if tail else ""
    return f"its logs went with its pod, because spec.logs names neither a claim nor a uri{hint}"


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
        if pod.phase == "Running" and pod.main.ready:
            return
        if pod.phase in ("Succeeded", "Failed") or waited_s > _STARTS_WITHIN_S:
            text = f"pod {name}, which was to read the log store, did not start in {waited_s:.0f} s: {why}"
            raise ReaderNotStarted(text)
        if waited_s > _SAYS_AFTER_S and why != reported:
            session.tell(f"waiting for pod {name}, which reads the log store: {why}")
            reported = why
        await asyncio.sleep(_LOOKS_EVERY_S)


def _why_log_reader_waits(pod: PodView) -> str:
    reason = pod.wait.reason or pod.state.reason or pod.end.reason
    message = pod.wait.message or pod.state.message or pod.end.message
    return ": ".join(filter(None, (reason, message))) or f"it is {pod.phase}, without a word why"
