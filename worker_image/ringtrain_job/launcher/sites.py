"""Site of each worker. A site is a group of hosts that share a fast network."""

import logging
from collections.abc import Callable, Mapping

log = logging.getLogger(__name__)


class WorkerSites:
    """Site names of workers. `names`: by worker index, if fixed. `awaits_nodes`: whether the operator sends the site of
    each node."""

    def __init__(self, names: Mapping[int, str], awaits_nodes: bool) -> None:
        self.by_index = dict(names)
        self.by_node: dict[str, str] = {}
        self.awaits_nodes = awaits_nodes
        self.of_host: Callable[[int], str] | None = None  # of the host that has the place of a worker
        self._without: set[str] = set()  # nodes that the log has named

    @property
    def are_named(self) -> bool:
        """Whether the job has sites."""
        return bool(self.by_index) or self.awaits_nodes or self.of_host is not None

    def hear(self, by_index: Mapping[int, str], by_node: Mapping[str, str]) -> None:
        """Store the site names that the operator has sent, by worker index and by node."""
        self.by_index.update(by_index)
        self.by_node.update(by_node)

    def of(self, worker: int, node: str) -> str:
        """Return the site name of `worker`, whose pod is on `node`; empty if it is unknown."""
        if self.of_host is not None:
            return self.of_host(worker)
        if not self.awaits_nodes:
            return self.by_index.get(worker, "")
        site = self.by_node.get(node, "")
        if not site and node in self.by_node and node not in self._without:
            self._without.add(node)
            log.error("node %s lacks the label for sites (networking.sites), so it gets no ranks", node)
        return site
