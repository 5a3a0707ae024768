"""Where a job that waits stands in its queue, as Kueue tells whoever asks: `dtj why` asks with the user's rights.

The operator never asks: the answer changes with every job that comes and goes, for every job that waits.
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
# No person needs to know a place behind so many pages.
MOST_PAGES = 20


async def place_in_queue(session: ClusterAccess, job: Json) -> str:
    """The job's place, counted from 1; empty if it does not wait, or if nobody tells."""
    name, queue = _admission_result(job), queue_of_live_job(job)
    if not name or not queue:
        return ""
    for version in VERSIONS:
        path = f"/apis/{GROUP}/{version}/namespaces/{session.namespace}/localqueues/{queue}/pendingworkloads"
        try:
            return await _found_in_queue(session, path, name, queue)
        except ApiError:
            continue  # not served in this version, or this user may not ask: the rest is told all the same
    return ""


async def _found_in_queue(session: ClusterAccess, path: str, name: str, queue: str) -> str:
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


def _admission_result(job: Json) -> str:
    status = job.get("status") or {}
    queued_as = (status.get("ledger") or {}).get("queuedAs")
    if queued_as == "Workload" and status.get("state") == "Queued":
        return workload_name_of(job)
    if queued_as == "PodGroup" and status.get("state") == "Pending":
        meta = job["metadata"]
        return group_name(meta["name"], meta["uid"], int(status.get("attempt") or 0))
    return ""
