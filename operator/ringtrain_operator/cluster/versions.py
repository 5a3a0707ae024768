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
    """Filter of events caused by this operator's own writes, and guard against reads of an outdated cache.

    Jobs: an event is ignored if its status was written by this process and requires no further work. An event that
    arrives during a reconcile is examined at the end of the reconcile, because it may belong to a write whose answer
    has not arrived yet.

    Pods: a list request requires a version `NotOlderThan` the newest version of any pod that this process has observed,
    read or created. The API server waits until its watch cache has reached that version and answers from the cache. A
    quorum read may fetch every pod of the namespace from etcd, whatever the selector: docs/decisions/0010.
    """

    def __init__(self, api: ApiClient) -> None:
        self.api = api
        self.known_pods = KnownPods()
        self._newest_pod = 0
        self._settled: dict[JobKey, str] = {}
        self._heard: dict[JobKey, str] = {}

    def record_settled(self, key: JobKey, version: str) -> None:
        """Record the version of a status that this operator wrote and after which nothing is left to do."""
        self._settled[key] = version

    def is_news(self, key: JobKey, version: str, during_reconcile: bool) -> bool:
        """Return whether an event of the job requires a reconcile. An event `during_reconcile` is only recorded."""
        if during_reconcile:
            self._heard[key] = version
            return False
        return self._settled.get(key) != version

    def needs_reconcile_after(self, key: JobKey) -> bool:
        """Return whether an event that was recorded during the reconcile requires another one."""
        version = self._heard.pop(key, None)
        return version is not None and self._settled.get(key) != version

    def forget(self, key: JobKey) -> None:
        """Drop the state of a deleted job."""
        self._settled.pop(key, None)
        self.known_pods.forget(key)

    def record_pod_version(self, version: str) -> None:
        """Record the resourceVersion of an observed pod. Later lists are at least as new."""
        # Versions are integers in order. With a server that has other versions, each read is a quorum read. A list's
        # own version does not count: it belongs to the whole store, and the cache of pods reaches it only when a pod
        # changes.
        if version.isdecimal():
            self._newest_pod = max(self._newest_pod, int(version))

    async def pods_of(self, key: JobKey, *, quorum: bool = False) -> list[Json]:
        """Return the job's pods; for a large job, from the cache. `quorum`: whether to read them from etcd instead."""
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
        """Return the pods of `namespace` that match `labels`, with the fields of `PodList`. Raises ApiError if the
        request fails.

        `quorum`: whether to read from the store instead of the API server's cache.
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
