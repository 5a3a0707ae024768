"""Logs and reports of a job on a cluster: from the launcher while it runs, later from the log store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Literal

from ringtrain_operator.cluster.api.errors import Forbidden, NotFound, ServerError, TooManyRequests, Unreachable
from ringtrain_operator.cluster.api.execute import execute_in_pod
from ringtrain_operator.cluster.api.resources import JOBS, PODS
from ringtrain_operator.errors import Invalid, OperatorError, counted
from ringtrain_operator.observe.pods import main_container
from ringtrain_operator.spec.parse import parse_job
from ringtrain_operator.status.model import parse_status

from .ended_logs import (
    LogsElsewhere,
    LogsIncomplete,
    attempt_of_pod,
    has_log_storage,
    has_not_begun,
    present_attempt,
    read_ended,
    read_log_store,
    storage_text,
)
from .following import ClientApiOutage, next_attempt, state_of
from .launcher_output import (
    MissingLauncherOutput,
    OutputChanged,
    PrintedLauncherOutput,
    ShownLauncherOutput,
    WantedLauncherOutput,
    launcher_output,
    missing_lines,
)
from .session import ClusterAccess, Json

# A pod's status reports the end of its container some seconds late, later on a busy node.
_ENDS_WITHIN_S = 20.0
# First pause before the output of a launcher that may have ended is read again.
_FIRST_WAIT_S = 1.0


class NoSuchRank(OperatorError):
    """Error: the requested rank does not exist. The message has the job's number of ranks."""


async def read_attempts(session: ClusterAccess, wanted: WantedLauncherOutput) -> AsyncGenerator[bytes, None]:
    """Yield the requested log of a job on a cluster in chunks of bytes.

    With --follow and without --attempt, continue with the logs of later attempts until the job ends or is suspended.
    Raises NotFound if the job is deleted before.
    """
    incomplete: LogsIncomplete | None = None
    if wanted.follow and wanted.attempt is None:
        await _wait_for_start(session, wanted.name)
    while True:
        attempt = await _check_rank(session, wanted)
        try:
            async with aclosing(await _find_launcher_output(session, wanted)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except LogsIncomplete as exc:
            if not wanted.follow or wanted.attempt is not None:
                raise
            incomplete = exc
            session.tell(str(exc))
        if not wanted.follow or wanted.attempt is not None:
            return
        following = await next_attempt(session.api, session.namespace, wanted.name, attempt)
        if following is None:
            job = await session.api.get(JOBS, session.namespace, wanted.name)
            if state_of(job) == "Suspended":
                session.tell(f"{wanted.name} is suspended; to continue: dtj resume {wanted.name}")
            break
        session.tell(f"attempt {following} of {wanted.name} begins")
    if incomplete is not None:
        raise incomplete


async def _wait_for_start(session: ClusterAccess, name: str) -> None:
    """Wait until the launcher of the job's first attempt runs. Return at once if the job is not waiting for its start.
    Raises NotFound if the job does not exist."""
    job = await session.api.get(JOBS, session.namespace, name)
    if has_not_begun(job, present_attempt(job)):
        session.tell(f"{name} has not begun; dtj why {name} prints the reason")
        await next_attempt(session.api, session.namespace, name, 0)


async def _check_rank(session: ClusterAccess, wanted: WantedLauncherOutput) -> int:
    """Return the number of the job's current attempt. Raises NoSuchRank if the requested rank does not exist."""
    job = await session.api.get(JOBS, session.namespace, wanted.name)
    status = job.get("status") or {}
    try:
        parsed = parse_job(job, templates=False)
    except Invalid:
        return int(status.get("attempt") or 0)
    made_with = parse_status(status).ledger.attempt_workers or parsed.num_workers
    workers = made_with + parsed.num_agents - parsed.num_workers
    if parsed.spec.elastic is not None:  # workers that were scaled down have log lines, too
        workers = parsed.max_agents
    size = workers * parsed.spec.slots
    if wanted.rank is not None and wanted.attempt in (None, status.get("attempt")) and wanted.rank >= size:
        raise NoSuchRank(f"--rank {wanted.rank}: {wanted.name} has {counted(size, 'rank')}, 0 to {size - 1}")
    return int(status.get("attempt") or 0)


async def _find_launcher_output(session: ClusterAccess, wanted: WantedLauncherOutput) -> AsyncGenerator[bytes, None]:
    """Return the requested log's chunks, read from the launcher's output or from the log store (spec.logs).

    Raises LogsElsewhere, or LogsIncomplete after the lines that were found.
    """
    job = await session.api.get(JOBS, session.namespace, wanted.name)
    pod: Json | None = None
    with suppress(NotFound):
        pod = await session.api.get(PODS, session.namespace, wanted.pod)
    own = pod is not None and wanted.attempt in (None, attempt_of_pod(pod))
    if pod is None or not is_running(pod) or not (own or has_log_storage(job)):
        return read_ended(session, wanted, job, pod, PrintedLauncherOutput())
    if own and wanted.rank is None:
        return _live_launcher_output(session, wanted, pod, job, PrintedLauncherOutput())
    return _output_from_log_store(session, wanted, job, pod)


async def _live_launcher_output(
    session: ClusterAccess, wanted: WantedLauncherOutput, pod: Json, job: Json, printed: PrintedLauncherOutput
) -> AsyncGenerator[bytes, None]:
    """Yield the output of a running launcher. If it ends meanwhile, report the lines that its node has deleted.

    With `follow`, read again if the connection breaks or ends before the launcher has ended.
    """
    outage, ends_within_s, fate = ClientApiOutage(), _FIRST_WAIT_S, "runs"
    while True:
        shown, lost = ShownLauncherOutput(), None
        try:
            async with aclosing(launcher_output(session, wanted, shown, printed)) as lines:
                async for line in lines:
                    outage.end()
                    ends_within_s = _FIRST_WAIT_S
                    yield line
        except OutputChanged as exc:
            if await _launcher_pod_state(session, pod, outage, 0.0) == "gone":  # the pod is the next attempt's
                return
            session.tell(f"{exc}: lines may be missing here, or appear twice")
            printed = PrintedLauncherOutput()
            continue
        except (Unreachable, ServerError, NotFound) as exc:
            lost = exc
        if lost is not None and (not wanted.follow or wanted.tail is not None):
            raise lost
        if not wanted.follow:
            return
        if isinstance(lost, Unreachable | ServerError):
            await outage.wait(lost)
        has_ended = fate == "ended"
        fate = await _launcher_pod_state(session, pod, outage, ends_within_s if wanted.tail is None else _ENDS_WITHIN_S)
        if fate == "gone" or isinstance(lost, NotFound) or wanted.tail is not None:
            break
        if fate == "ended" and (has_ended or not await _missing_launcher_lines(session, wanted, shown)):
            break
        ends_within_s = min(2 * ends_within_s, _ENDS_WITHIN_S)
        if shown.last:
            printed = PrintedLauncherOutput(shown.wanted, last=shown.last)
    if fate == "runs":
        raise lost or Unreachable(f"{wanted.pod} still runs, and the connection to its output was lost")
    if fate == "gone" and lost is not None:
        session.tell(f"{wanted.pod} was deleted while its output was read; {storage_text(job, attempt_of_pod(pod))}")
    if fate == "ended" and wanted.tail is None and (missing := await _missing_launcher_lines(session, wanted, shown)):
        raise LogsIncomplete(f"{missing}; {storage_text(job, attempt_of_pod(pod))}")


async def _missing_launcher_lines(
    session: ClusterAccess, wanted: WantedLauncherOutput, shown: ShownLauncherOutput
) -> MissingLauncherOutput:
    """Return how many requested lines of the ended launcher are missing among the lines `shown` to the user."""
    try:
        pod = await session.api.get(PODS, session.namespace, wanted.pod)
    except NotFound:
        return MissingLauncherOutput()
    return missing_lines(pod, attempt_of_pod(pod), wanted, shown)


async def _launcher_pod_state(
    session: ClusterAccess, pod: Json, outage: ClientApiOutage, within_s: float
) -> Literal["ended", "gone", "runs"]:
    """Wait up to `within_s` seconds for the pod's end. Return "ended", "gone" (deleted) or "runs".

    While the API server is unreachable, wait longer.
    """
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    while True:
        try:
            ended = await _has_ended_within(session, name, within_s)
            found = await session.api.get(PODS, session.namespace, name)
        except NotFound:
            return "gone"
        except (Unreachable, ServerError, TooManyRequests) as exc:
            await outage.wait(exc)
            continue
        if found["metadata"]["uid"] != uid:
            return "gone"
        return "ended" if ended else "runs"


async def _output_from_log_store(
    session: ClusterAccess, wanted: WantedLauncherOutput, job: Json, pod: Json
) -> AsyncGenerator[bytes, None]:
    """Yield the requested file of the launcher's log store. If that fails, yield the output of the launcher while it
    runs, or the result of `read_ended` if it has ended."""
    main, printed, found = main_container(pod), PrintedLauncherOutput(), attempt_of_pod(pod)
    container, program = main["name"], main["command"][0]
    command = wanted.command(program, wanted.attempt or found, follow=wanted.follow)
    own = wanted.rank is not None and wanted.attempt in (None, found)
    try:
        stream = execute_in_pod(session.api.connection, session.namespace, wanted.pod, container, command)
        async with aclosing(stream) as chunks:
            async for chunk in chunks:
                printed.feed(chunk)
                yield chunk
        return
    except Forbidden as exc:
        if not own:
            raise
        session.tell(f"{exc}; from the launcher's output instead:")
    except Unreachable:
        if not own or (wanted.tail is not None and printed.lines):
            raise
    except (ServerError, NotFound):
        # A kubelet answers so when the container has ended; the pod's status reports it a moment later.
        if not own or not await _has_ended_within(session, wanted.pod):
            raise
    pod = await session.api.get(PODS, session.namespace, wanted.pod)
    if attempt_of_pod(pod) == found and not is_running(pod):
        rest = read_ended(session, wanted, job, pod, printed)
    else:
        rest = _live_launcher_output(session, wanted, pod, job, printed)
    async with aclosing(rest) as chunks:
        async for chunk in chunks:
            yield chunk


async def _has_ended_within(session: ClusterAccess, name: str, within_s: float = _ENDS_WITHIN_S) -> bool:
    """Return whether the pod has ended or ends within `within_s` seconds; False if it does not exist."""
    give_up_at = time.monotonic() + within_s
    while True:
        try:
            pod = await session.api.get(PODS, session.namespace, name)
        except NotFound:
            return False
        if not is_running(pod):
            return True
        if time.monotonic() >= give_up_at:
            return False
        await asyncio.sleep(0.2)


def is_running(pod: Json) -> bool:
    """Return whether commands can be executed in the pod."""
    return (pod.get("status") or {}).get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]


async def read_reports(session: ClusterAccess, name: str, attempt: int | None) -> AsyncGenerator[bytes, None]:
    """Yield what the ranks reported (metrics.jsonl in the log store), and new lines while the attempt runs.

    Raises LogsElsewhere if no launcher, no claim and no object store has the file.
    """
    wanted = WantedLauncherOutput(name, None, attempt, follow=True, tail=None, reports=True)
    job = await session.api.get(JOBS, session.namespace, name)
    pod: Json | None = None
    with suppress(NotFound):
        pod = await session.api.get(PODS, session.namespace, wanted.pod)
    present = int((job.get("status") or {}).get("attempt") or 0)
    if pod is not None and is_running(pod) and (attempt in (None, attempt_of_pod(pod)) or has_log_storage(job)):
        found = attempt_of_pod(pod)
        main = main_container(pod)
        command = wanted.command(main["command"][0], attempt or found, follow=attempt in (None, found))
        chunks = execute_in_pod(session.api.connection, session.namespace, wanted.pod, main["name"], command)
    elif has_log_storage(job) and present:
        chunks = read_log_store(session, wanted, job, attempt or present, PrintedLauncherOutput())
    else:
        raise LogsElsewhere(
            f"no running launcher of {name} has reports of the attempt, and spec.logs stores "
            "reports neither on a claim nor at a uri; set spec.logs to read reports at any time"
        )
    async with aclosing(chunks) as stream:
        async for chunk in stream:
            yield chunk
