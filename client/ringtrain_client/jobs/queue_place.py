"""Place of a waiting job in its queue, which `dtj why` reads from Kueue with the user's rights.

The operator does not read it: the place of every waiting job changes whenever any job starts or ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringtrain_operator.build.names import group_name
from ringtrain_operator.cluster.api.errors import ApiError
from ringtrain_operator.cluster.kueue import VERSIONS, queue_of_live_job, workload_name_of

if TYPE_CHECKING:
    from .session import ClusterAccess

Json = dict[str, Any]
GROUP = "visibility.kueue.x-k8s.io"
PAGE = 1000
# A place after this many pages is of no use to a person.
MOST_PAGES = 20


async def queue_place_text(session: ClusterAccess, job: Json) -> str:
    """Return a text with the job's place in Kueue's queue, counted from 1; empty if the place is unknown or the job
    waits in no queue."""
    name, queue = _workload_name(job), queue_of_live_job(job)
    if not name or not queue:
        return ""
    for version in VERSIONS:
        path = f"/apis/{GROUP}/{version}/namespaces/{session.namespace}/localqueues/{queue}/pendingworkloads"
        try:
            return await _read_queue_place(session, path, name, queue)
        except ApiError:
            continue  # this version is not served, or the user has no right to read it
    return ""


async def _read_queue_place(session: ClusterAccess, path: str, name: str, queue: str) -> str:
    """Return a text with the place of the workload `name`; empty if it is not in the queue."""
    for page in range(MOST_PAGES):
        answer = await session.api.raw_get(f"{path}?offset={page * PAGE}&limit={PAGE}")
        items = answer.get("items") or []
        for item in items:
            if item["metadata"]["name"] == name:
                mine, all_ = item["positionInLocalQueue"] + 1, item["positionInClusterQueue"] + 1
                return f"place {mine} in LocalQueue {queue}, {all_} in its ClusterQueue"
        if len(items) < PAGE:
            break
    return ""


def _workload_name(job: Json) -> str:
    """Return the name of the Workload or PodGroup that waits in Kueue for the job; empty if none waits."""
    status = job.get("status") or {}
    queued_as = (status.get("ledger") or {}).get("queuedAs")
    if queued_as == "Workload" and status.get("state") == "Queued":
        return workload_name_of(job)
    if queued_as == "PodGroup" and status.get("state") == "Pending":
        meta = job["metadata"]
        return group_name(meta["name"], meta["uid"], int(status.get("attempt") or 0))
    return ""
