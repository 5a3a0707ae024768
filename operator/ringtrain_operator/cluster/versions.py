"""Resource versions of jobs and pods that this process has read, written or observed."""

from typing import Any

from .. import contract
from ..observe.pod_shape import PodList
from .api.client import ApiClient
from .api.errors import VersionAhead
from .api.resources import PODS
from .pods import KnownPods
from .queue import JobKey

Json = dict[str, Any]


class ResourceVersions:
    """Recognises events of this process's own writes, and prevents reads that are older than earlier ones.

    Jobs: an event of a status that this process wrote and that required nothing more is ignored. An event during a
    reconcile is judged at its end: it may belong to a write whose answer has not arrived yet.

    Pods: a list asks for `NotOlderThan` the newest version of any pod that this process has observed, read or created.
    The API server answers from its watch cache and waits until that has caught up. A quorum read may fetch every pod of
    the namespace from etcd, whatever the selector: docs/decisions/0010.
    """

    def __init__(self, api: ApiClient) -> None:
        self.api = api
        self.known_pods = KnownPods()
        self._newest_pod = 0
        self._settled: dict[JobKey, str] = {}
        self._heard: dict[JobKey, str] = {}

    def record_settled(self, key: JobKey, version: str) -> None:
        """Record the version of a status that this process wrote and that required nothing more."""
        self._settled[key] = version

    def is_news(self, key: JobKey, version: str, during_reconcile: bool) -> bool:
        """Return whether an event of the job requires a reconcile now. One `during_reconcile` is judged by
        `needs_reconcile_after`.
        """
        if during_reconcile:
            self._heard[key] = version
            return False
        return self._settled.get(key) != version

    def needs_reconcile_after(self, key: JobKey) -> bool:
        """Return whether an event during the reconcile requires another one."""
        version = self._heard.pop(key, None)
        return version is not None and self._settled.get(key) != version

    def forget(self, key: JobKey) -> None:
        """Drop the state of a deleted job."""
        self._settled.pop(key, None)
        self.known_pods.forget(key)

    def record_pod_version(self, version: str) -> None:
        """Record the resourceVersion of an observed pod; no later list is older."""
        # Versions are integers in order. With a server that has other versions, each read is a quorum read. A list's
        # own version does not count: it belongs to the whole store, and the cache of pods reaches it only when a pod
        # changes.
        if version.isdecimal():
            self._newest_pod = max(self._newest_pod, int(version))

    async def pods_of(self, key: JobKey, *, quorum: bool = False) -> list[Json]:
        """Return the pods with the job's label, as `list_pods`. Pods of a large job may be of different moments."""
        selector = f"{contract.LABEL_JOB}={key.name}"
        if quorum:
            self.known_pods.forget(key)
            return await self.list_pods(key.namespace, selector, quorum=True)
        if (cached := self.known_pods.cached(key)) is not None:
            return cached
        known = self.known_pods.begin(key)
        pods = await self.list_pods(key.namespace, selector)
        self.known_pods.complete(key, known, pods)
        return pods

    async def list_pods(self, namespace: str, labels: str, *, quorum: bool = False) -> list[Json]:
        """Return the pods of `namespace` that match `labels`, with the fields of `PodList`. Raises ApiError.

        `quorum`: read from the store instead of the API server's cache.
        """
        floor = "" if quorum or not self._newest_pod else str(self._newest_pod)
        try:
            found = await self.api.listing(PODS, namespace, labels=labels, not_older_than=floor, shape=PodList)
        except VersionAhead:
            # The store was restored from a backup: earlier versions do not count any more.
            self._newest_pod = 0
            found = await self.api.listing(PODS, namespace, labels=labels, shape=PodList)
        for pod in found.items:
            self.record_pod_version(str(pod["metadata"].get("resourceVersion")))
        return found.items
