"""The reports of a job's ranks: from its launcher while it runs, later from where they are kept."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from ..cluster.api.errors import NotFound
from ..cluster.api.execute import execute
from ..cluster.api.resources import JOBS, PODS
from ..observe.pods import main_container
from .cluster_logs import is_running
from .ended_logs import LogsElsewhere, attempt_of, from_claim, is_kept
from .launcher_output import Printed, Wanted
from .session import ClusterAccess, Json


async def read_reports(session: ClusterAccess, name: str, attempt: int | None) -> AsyncGenerator[bytes, None]:
    """What the log store's metrics.jsonl holds, and while the attempt runs what is added to it.

    Raises LogsElsewhere where neither a launcher has it nor a claim or an object store.
    """
    wanted = Wanted(name, None, attempt, follow=True, tail=None, reports=True)
    job = await session.api.get(JOBS, session.namespace, name)
    pod: Json | None = None
    with suppress(NotFound):
        pod = await session.api.get(PODS, session.namespace, wanted.pod)
    present = int((job.get("status") or {}).get("attempt") or 0)
    if pod is not None and is_running(pod) and (attempt in (None, attempt_of(pod)) or is_kept(job)):
        found = attempt_of(pod)
        main = main_container(pod)
        command = wanted.command(main["command"][0], attempt or found, follow=attempt in (None, found))
        chunks = execute(session.api.connection, session.namespace, wanted.pod, main["name"], command)
    elif is_kept(job) and present:
        chunks = from_claim(session, wanted, job, attempt or present, Printed())
    else:
        raise LogsElsewhere(
            f"no launcher of {name} runs that has reports of the attempt, and spec.logs names neither a claim nor "
            "a uri that keeps them; with one they can be read at any time"
        )
    async with aclosing(chunks) as stream:
        async for chunk in stream:
            yield chunk
