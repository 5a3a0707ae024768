"""Log and reports of a job on a cluster: from its launcher while it runs, later from where they are kept."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Literal

from ringtrain_operator.cluster.api.errors import Forbidden, NotFound, ServerError, TooManyRequests, Unreachable
from ringtrain_operator.cluster.api.execute import execute_in_pod
from ringtrain_operator.cluster.api.resources import JOBS, PODS
from ringtrain_operator.errors import Invalid, OperatorError
from ringtrain_operator.observe.pods import main_container
from ringtrain_operator.spec.parse import parse_job
from ringtrain_operator.status.model import parse_status
from ringtrain_operator.status.situation import counted

from .ended_logs import (
    LogsElsewhere,
    LogsIncomplete,
    attempt_of_log_pod,
    from_claim,
    is_log_kept,
    read_ended,
    where_kept,
)
from .following import ClientApiOutage, next_attempt
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

# A container has ended some seconds before its pod says so, more of them on a busy node.
_ENDS_WITHIN_S = 20.0
# How long the output of a launcher that may have ended is not asked for again, at first.
_FIRST_WAIT_S = 1.0


class NoSuchRank(OperatorError):
    """The job has fewer ranks; the message says how many."""


async def read_attempts(session: ClusterAccess, wanted: WantedLauncherOutput) -> AsyncGenerator[bytes, None]:
    """The log that is wanted; with --follow and no --attempt, the following attempts' logs until the job ends."""
    incomplete: LogsIncomplete | None = None
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
            break
        session.tell(f"attempt {following} of {wanted.name} begins")
    if incomplete is not None:
        raise incomplete


async def _check_rank(session: ClusterAccess, wanted: WantedLauncherOutput) -> int:
    """The job's present attempt. Raises NoSuchRank for one that it does not have."""
    job = await session.api.get(JOBS, session.namespace, wanted.name)
    status = job.get("status") or {}
    try:
        parsed = parse_job(job, templates=False)
    except Invalid:
        return int(status.get("attempt") or 0)
    made_with = parse_status(status).ledger.attempt_workers or parsed.num_workers
    workers = made_with + parsed.num_agents - parsed.num_workers
    if parsed.spec.elastic is not None:  # a worker that was scaled down has left lines, too
        workers = parsed.max_agents
    size = workers * parsed.spec.slots
    if wanted.rank is not None and wanted.attempt in (None, status.get("attempt")) and wanted.rank >= size:
        raise NoSuchRank(f"--rank {wanted.rank}: {wanted.name} has {counted(size, 'rank')}, 0 to {size - 1}")
    return int(status.get("attempt") or 0)


async def _find_launcher_output(session: ClusterAccess, wanted: WantedLauncherOutput) -> AsyncGenerator[bytes, None]:
    """Chunks of the log, from wherever it is. Raises LogsElsewhere, and LogsIncomplete after what there is."""
    job = await session.api.get(JOBS, session.namespace, wanted.name)
    pod: Json | None = None
    with suppress(NotFound):
        pod = await session.api.get(PODS, session.namespace, wanted.pod)
    own = pod is not None and wanted.attempt in (None, attempt_of_log_pod(pod))
    if pod is None or not is_log_pod_running(pod) or not (own or is_log_kept(job)):
        return read_ended(session, wanted, job, pod, PrintedLauncherOutput())
    if own and wanted.rank is None:
        return _live_launcher_output(session, wanted, pod, job, PrintedLauncherOutput())
    return _output_from_log_store(session, wanted, job, pod)


async def _live_launcher_output(
    session: ClusterAccess, wanted: WantedLauncherOutput, pod: Json, job: Json, printed: PrintedLauncherOutput
) -> AsyncGenerator[bytes, None]:
    """The output of a launcher that runs. When it has ended meanwhile, what its node had dropped is told.

    Followed, it goes on where a connection breaks or ends before the launcher has.
    """
    outage, ends_within_s, fate = ClientApiOutage(), _FIRST_WAIT_S, "runs"
    while True:
        shown, lost = ShownLauncherOutput(), None
        try:
            async with aclosing(launcher_output(session, wanted, shown, printed)) as lines:
                async for line in lines:
                    outage.is_over()
                    ends_within_s = _FIRST_WAIT_S
                    yield line
        except OutputChanged as exc:
            if await _launcher_pod_fate(session, pod, outage, 0.0) == "gone":  # it is the next attempt's
                return
            session.tell(f"{exc}: lines may be missing here, or come twice")
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
        fate = await _launcher_pod_fate(session, pod, outage, ends_within_s if wanted.tail is None else _ENDS_WITHIN_S)
        if fate == "gone" or isinstance(lost, NotFound) or wanted.tail is not None:
            break
        if fate == "ended" and (has_ended or not await _missing_launcher_lines(session, wanted, shown)):
            break
        ends_within_s = min(2 * ends_within_s, _ENDS_WITHIN_S)
        if shown.last:
            printed = PrintedLauncherOutput(shown.wanted, last=shown.last)
    if fate == "runs":
        raise lost or Unreachable(f"{wanted.pod} runs still, and the connection to its output was lost")
    if fate == "gone" and lost is not None:
        session.tell(f"{wanted.pod} went while its output was read; {where_kept(job, attempt_of_log_pod(pod))}")
    if fate == "ended" and wanted.tail is None and (missing := await _missing_launcher_lines(session, wanted, shown)):
        raise LogsIncomplete(f"{missing}; {where_kept(job, attempt_of_log_pod(pod))}")


async def _missing_launcher_lines(
    session: ClusterAccess, wanted: WantedLauncherOutput, shown: ShownLauncherOutput
) -> MissingLauncherOutput:
    """What the launcher, which has ended, wrote beyond what was shown."""
    try:
        pod = await session.api.get(PODS, session.namespace, wanted.pod)
    except NotFound:
        return MissingLauncherOutput()
    return missing_lines(pod, attempt_of_log_pod(pod), wanted, shown)


async def _launcher_pod_fate(
    session: ClusterAccess, pod: Json, outage: ClientApiOutage, within_s: float
) -> Literal["ended", "gone", "runs"]:
    """What has become of a pod, after some seconds if it runs; an API server may be away meanwhile."""
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    while True:
        try:
            ended = await _launcher_output_ends(session, name, within_s)
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
    """The store's own file. When the launcher ends meanwhile, the rest comes from where it then is."""
    main, printed, found = main_container(pod), PrintedLauncherOutput(), attempt_of_log_pod(pod)
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
        # So a kubelet answers when the container has ended; the pod says that it has a moment later.
        if not own or not await _launcher_output_ends(session, wanted.pod):
            raise
    pod = await session.api.get(PODS, session.namespace, wanted.pod)
    if attempt_of_log_pod(pod) == found and not is_log_pod_running(pod):
        rest = read_ended(session, wanted, job, pod, printed)
    else:
        rest = _live_launcher_output(session, wanted, pod, job, printed)
    async with aclosing(rest) as chunks:
        async for chunk in chunks:
            yield chunk


async def _launcher_output_ends(session: ClusterAccess, name: str, within_s: float = _ENDS_WITHIN_S) -> bool:
    """Whether the pod has ended, or does within a few seconds."""
    give_up_at = time.monotonic() + within_s
    while True:
        try:
            pod = await session.api.get(PODS, session.namespace, name)
        except NotFound:
            return False
        if not is_log_pod_running(pod):
            return True
        if time.monotonic() >= give_up_at:
            return False
        await asyncio.sleep(0.2)


def is_log_pod_running(pod: Json) -> bool:
    """Whether commands can be run in the pod."""
    return (pod.get("status") or {}).get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]


async def read_reports(session: ClusterAccess, name: str, attempt: int | None) -> AsyncGenerator[bytes, None]:
    """What the log store's metrics.jsonl holds, and while the attempt runs what is added to it.

    Raises LogsElsewhere where neither a launcher has it nor a claim or an object store.
    """
    wanted = WantedLauncherOutput(name, None, attempt, follow=True, tail=None, reports=True)
    job = await session.api.get(JOBS, session.namespace, name)
    pod: Json | None = None
    with suppress(NotFound):
        pod = await session.api.get(PODS, session.namespace, wanted.pod)
    present = int((job.get("status") or {}).get("attempt") or 0)
    if pod is not None and is_log_pod_running(pod) and (attempt in (None, attempt_of_log_pod(pod)) or is_log_kept(job)):
        found = attempt_of_log_pod(pod)
        main = main_container(pod)
        command = wanted.command(main["command"][0], attempt or found, follow=attempt in (None, found))
        chunks = execute_in_pod(session.api.connection, session.namespace, wanted.pod, main["name"], command)
    elif is_log_kept(job) and present:
        chunks = from_claim(session, wanted, job, attempt or present, PrintedLauncherOutput())
    else:
        raise LogsElsewhere(
            f"no launcher of {name} runs that has reports of the attempt, and spec.logs names neither a claim nor "
            "a uri that keeps them; with one they can be read at any time"
        )
    async with aclosing(chunks) as stream:
        async for chunk in stream:
            yield chunk
