"""`dtj logs JOB`: the merged output of all ranks, or one rank's whole log."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

import click

from ringtrain_operator import contract
from ringtrain_operator.errors import OperatorError
from ringtrain_operator.observe import termination_of, view_pod

from .failures import told
from .session import (
    RUNS,
    ClusterOptions,
    Json,
    Session,
    cluster_options,
    job_argument,
    local_option,
    with_session,
    without_cluster,
)

# A container has ended some seconds before its pod says so, more of them on a busy node.
_ENDS_WITHIN_S = 20.0


# What stands before each rank's line in the launcher's output.
_MARK = re.compile(rb"\[\d+\] ")


class LogsIncomplete(OperatorError):
    """Ranks' lines are no longer in the launcher's output; the message says how many and where they are."""


class LogsElsewhere(OperatorError):
    """The log that was asked for is not in a pod; the message says where it is."""


class NoSuchRank(OperatorError):
    """The job has fewer ranks; the message says how many."""


@dataclass(frozen=True)
class Wanted:
    """What the user asked for. `attempt` None: the present one."""

    name: str
    rank: int | None
    attempt: int | None
    follow: bool
    tail: int | None

    @property
    def pod(self) -> str:
        """The launcher's pod."""
        return f"{self.name}-launcher"

    def command(self, attempt: int) -> list[str]:
        """What prints it in the launcher's container."""
        options = [f"--attempt={attempt}"]
        options += [f"--rank={self.rank}"] if self.rank is not None else []
        options += ["--follow"] if self.follow else []
        options += [f"--tail={self.tail}"] if self.tail is not None else []
        return ["ringtrain", "logs", *options]


@click.command()
@job_argument
@click.option("--rank", type=click.IntRange(min=0), default=None, help="This rank's whole log.")
@click.option("--attempt", type=click.IntRange(min=1), default=None, help="Of this attempt; default: the present.")
@click.option(
    "--follow",
    "-f",
    is_flag=True,
    help="Go on until the job ends, over restarts; with --attempt, until that one has ended.",
)
@click.option("--tail", type=click.IntRange(min=0), default=None, help="Begin with the last lines only.")
@local_option
@cluster_options
def logs(
    name: str,
    rank: int | None,
    attempt: int | None,
    follow: bool,
    tail: int | None,
    local: bool,
    cluster: ClusterOptions,
) -> None:
    """Print what the job's ranks wrote: all ranks as the launcher merged it, or one rank.

    While the launcher runs, --rank and --attempt read the files of the log store in its pod (that needs the right
    to exec there); when it has ended, --rank is what its output has of that rank. See docs/logs.md.
    """
    if without_cluster(local, cluster):
        from .local_logs import print_local_log

        if follow:
            raise click.UsageError(
                "--follow is for a cluster; dtj local --output shows what ranks write as it comes"
            )
        with told():
            print_local_log(RUNS, name, rank, attempt, tail)
        return
    wanted = Wanted(name, rank, attempt, follow, tail)

    async def work(session: Session) -> None:
        async with aclosing(_attempts(session, wanted)) as chunks:
            async for chunk in chunks:
                sys.stdout.buffer.write(chunk)
                sys.stdout.buffer.flush()

    with_session(cluster, work)


async def _attempts(session: Session, wanted: Wanted) -> AsyncGenerator[bytes, None]:
    """The log that is wanted; with --follow and no --attempt, the following attempts' logs until the job ends."""
    from .following import next_attempt

    while True:
        attempt = await _check_rank(session, wanted)
        async with aclosing(_read(session, wanted)) as chunks:
            async for chunk in chunks:
                yield chunk
        if not wanted.follow or wanted.attempt is not None:
            return
        following = await next_attempt(session.api, session.namespace, wanted.name, attempt)
        if following is None:
            return
        click.echo(f"attempt {following} of {wanted.name} begins", err=True)


async def _check_rank(session: Session, wanted: Wanted) -> int:
    """The job's present attempt. Raises NoSuchRank for one that it does not have."""
    from ringtrain_operator.cluster.api import JOBS
    from ringtrain_operator.errors import SpecInvalid
    from ringtrain_operator.spec import parse_job

    job = await session.api.get(JOBS, session.namespace, wanted.name)
    status = job.get("status") or {}
    try:
        parsed = parse_job(job, templates=False)
    except SpecInvalid:
        return int(status.get("attempt") or 0)
    workers = int(status.get("attemptWorkers") or parsed.num_workers) + parsed.num_agents - parsed.num_workers
    size = workers * parsed.spec.slots
    if wanted.rank is not None and wanted.attempt in (None, status.get("attempt")) and wanted.rank >= size:
        raise NoSuchRank(f"--rank {wanted.rank}: {wanted.name} has {size} ranks, 0 to {size - 1}")
    return int(status.get("attempt") or 0)


async def _read(session: Session, wanted: Wanted) -> AsyncGenerator[bytes, None]:
    """Chunks of the log, from wherever it is. Raises LogsElsewhere when no pod has it."""
    from ringtrain_operator.cluster.api import JOBS, PODS, NotFound

    job = await session.api.get(JOBS, session.namespace, wanted.name)
    try:
        pod = await session.api.get(PODS, session.namespace, wanted.pod)
    except NotFound as exc:
        present = wanted.attempt or (job.get("status") or {}).get("attempt")
        raise LogsElsewhere(f"{wanted.name} has no launcher now; {where_kept(job, present)}") from exc
    found = int(pod["metadata"].get("labels", {}).get(contract.LABEL_ATTEMPT) or 0)
    own = wanted.attempt in (None, found)
    if own and wanted.rank is None:
        source = _merged(session, wanted)
    elif _is_running(pod) and (own or _claim(job)):
        source = _from_store(session, wanted, pod, found)
    elif own:
        source = _of_rank(session, wanted, skip=0)
    else:
        kept = where_kept(job, wanted.attempt)
        raise LogsElsewhere(f"the launcher of {wanted.name} is of attempt {found}; {kept}")
    async with aclosing(source) as chunks:
        async for chunk in chunks:
            yield chunk


def _merged(session: Session, wanted: Wanted) -> AsyncGenerator[bytes, None]:
    return session.api.pod_log(session.namespace, wanted.pod, follow=wanted.follow, tail_lines=wanted.tail)


async def _from_store(session: Session, wanted: Wanted, pod: Json, found: int) -> AsyncGenerator[bytes, None]:
    """The store's own file. When the launcher ends meanwhile, the rest comes from its output."""
    from ringtrain_operator.cluster.api import Forbidden, NotFound, ServerError, Unreachable
    from ringtrain_operator.cluster.api.execute import execute

    container, counter = pod["spec"]["containers"][0]["name"], LineCounter()
    command = wanted.command(wanted.attempt or found)
    own = wanted.rank is not None and wanted.attempt in (None, found)
    try:
        stream = execute(session.api.connection, session.namespace, wanted.pod, container, command)
        async with aclosing(stream) as chunks:
            async for chunk in chunks:
                counter.feed(chunk)
                yield chunk
        return
    except Forbidden as exc:
        if not own:
            raise
        click.echo(f"{exc}; from the launcher's output instead:", err=True)
    except Unreachable:
        if not own or (wanted.tail is not None and counter.lines):
            raise
    except (ServerError, NotFound):
        # So a kubelet answers when the container has ended; the pod says that it has a moment later.
        if not own or not await _ends(session, wanted.pod):
            raise
    async with aclosing(_of_rank(session, wanted, skip=counter.lines)) as chunks:
        async for chunk in chunks:
            yield chunk


async def _ends(session: Session, name: str) -> bool:
    """Whether the pod has ended, or does within a few seconds."""
    from ringtrain_operator.cluster.api import PODS, NotFound

    give_up_at = time.monotonic() + _ENDS_WITHIN_S
    while True:
        try:
            pod = await session.api.get(PODS, session.namespace, name)
        except NotFound:
            return False
        if not _is_running(pod):
            return True
        if time.monotonic() >= give_up_at:
            return False
        await asyncio.sleep(0.2)


async def _of_rank(session: Session, wanted: Wanted, skip: int) -> AsyncGenerator[bytes, None]:
    """The rank's lines of the launcher's output, without their mark and without the first `skip`.

    Raises LogsIncomplete at the end if that output is not all that the launcher has written.
    """
    mark, seen, shown = b"[%d] " % (wanted.rank or 0), 0, 0
    last: deque[bytes] = deque(maxlen=wanted.tail)
    lines = session.api.pod_log(session.namespace, wanted.pod, follow=wanted.follow)
    async with aclosing(lines):
        async for line in lines:
            shown += _MARK.match(line) is not None
            if not line.startswith(mark):
                continue
            seen += 1
            if seen <= skip:
                continue
            if wanted.tail is None:
                yield line.removeprefix(mark)
            else:
                last.append(line.removeprefix(mark))
    for line in last:
        yield line
    if wanted.tail is None or len(last) < wanted.tail:  # a node drops the oldest lines
        await _check_complete(session, wanted, shown)


async def _check_complete(session: Session, wanted: Wanted, shown: int) -> None:
    """Raise LogsIncomplete if the launcher has ended and says that it wrote more than `shown` lines of ranks."""
    from ringtrain_operator.cluster.api import JOBS, PODS

    pod = await session.api.get(PODS, session.namespace, wanted.pod)
    attempt = int(pod["metadata"].get("labels", {}).get(contract.LABEL_ATTEMPT) or 0)
    written = termination_of(view_pod(pod), attempt).get("logLines")
    if not isinstance(written, int) or shown >= written:
        return
    job = await session.api.get(JOBS, session.namespace, wanted.name)
    raise LogsIncomplete(
        f"{written - shown} of the {written} lines that all ranks wrote are no longer in the launcher's output, "
        f"the oldest ones: its node keeps only so much; {where_kept(job, attempt)}"
    )


class LineCounter:
    """Counts lines as the launcher does: they end with a newline, or with a carriage return alone."""

    def __init__(self) -> None:
        self.lines = 0
        self._after_return = False

    def feed(self, chunk: bytes) -> None:
        """More of the stream."""
        self.lines += chunk.count(b"\n") + chunk.count(b"\r") - chunk.count(b"\r\n")
        self.lines -= self._after_return and chunk.startswith(b"\n")
        self._after_return = chunk.endswith(b"\r")


def _is_running(pod: Json) -> bool:
    return (pod.get("status") or {}).get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]


def _claim(job: Json) -> str:
    claim = (job["spec"].get("logs") or {}).get("persistentVolumeClaim") or {}
    return str(claim.get("claimName") or "")


def where_kept(job: Json, attempt: int | None) -> str:
    """Where the log of an attempt lies when its pods are gone."""
    meta = job["metadata"]
    folder = f"{meta['namespace']}/{meta['name']}/{attempt or 1}/"
    claim = _claim(job)
    if claim:
        return f"attempt {attempt or 1} is kept on the volume of claim {claim}, in {folder}job.log and rank-*.log"
    tail = ((job.get("status") or {}).get("failure") or {}).get("logTail")
    hint = f"; the failed rank's last lines are in its status (dtj why {meta['name']})" if tail else ""
    return f"its logs went with its pod, because spec.logs names no claim{hint}"
