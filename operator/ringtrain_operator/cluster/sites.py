"""At which site each worker of a job is, by a label of its node."""

from collections.abc import Sequence

from ..contract import ROLE_WORKER
from ..observe.model import PodView
from .api.client import ApiClient
from .api.errors import ApiError
from .api.resources import NODES
from .poll import Document, log


async def read_sites(
    api: ApiClient, label: str, workers: int, pods: Sequence[PodView], known: dict[str, str]
) -> Document | None:
    """What the launcher is told: by value of `label`, the workers whose nodes have it; "": nodes without one. None
    until all workers have nodes, and where nodes may not be read. `known`: by node, what was read before."""
    nodes = {pod.index: pod.node for pod in pods if pod.role == ROLE_WORKER and pod.node and not pod.finished}
    if not nodes or len(nodes) < workers:
        return None
    try:
        for name in set(nodes.values()) - known.keys():
            labels = (await api.get(NODES, None, name))["metadata"].get("labels") or {}
            if label in labels:
                known[name] = labels[label]
    except ApiError as exc:
        log.warning("sites of nodes could not be read: %s", exc)
        return None
    sites: dict[str, list[int]] = {}
    for index, node in sorted(nodes.items()):
        sites.setdefault(known.get(node, ""), []).append(index)
    return {"sites": sites}
