"""The versions of jobs and pods that this process has read, written or been told of: what is news, what is old."""

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
    """Recognises its own writing, and reads nothing that is older than what it knows already.

    Jobs: the event of a status that this process wrote, and after which there was nothing left to do, is no news.
    An event during a look waits for the look's end: it may be of a write whose answer is still on its way.

    Pods: a list asks for `NotOlderThan` the newest version of any pod that this process was told of, has read or
    has made: the API server answers from its watch cache, and waits until that has caught up. A quorum read may
    fetch every pod of the namespace from etcd, whatever the selector: docs/decisions/0010.
    """

    def __init__(self, api: ApiClient) -> None:
        self.api = api
        self.known_pods = KnownPods()
        self._newest_pod = 0
        self._settled: dict[JobKey, str] = {}
        self._heard: dict[JobKey, str] = {}

    def settled(self, key: JobKey, version: str) -> None:
        """The job's status was written at `version`, and nothing was left to do."""
        self._settled[key] = version

    def is_news(self, key: JobKey, version: str, during_look: bool) -> bool:
        """Whether an event of the job asks for a look now; one `during_look` is for `look_ended` to judge."""
        if during_look:
            self._heard[key] = version
            return False
        return self._settled.get(key) != version

    def look_ended(self, key: JobKey) -> bool:
        """Whether an event of the job that came during the look asks for another."""
        version = self._heard.pop(key, None)
        return version is not None and self._settled.get(key) != version

    def forget(self, key: JobKey) -> None:
        """The job is gone."""
        self._settled.pop(key, None)
        self.known_pods.forget(key)

    def saw_pod(self, version: str) -> None:
        """A pod was seen at `version`, its resourceVersion: no later list is older."""
        # Versions are ordered integers; a server with any other kind is read by quorum each time. A list's own
        # version does not count: it is the whole store's, which a cache of pods reaches only when a pod changes.
        if version.isdecimal():
            self._newest_pod = max(self._newest_pod, int(version))

    async def pods_of(self, key: JobKey, *, quorum: bool = False) -> list[Json]:
        """The pods that name the job, as `list_pods`; of a large job perhaps each of another moment."""
        selector = f"{contract.LABEL_JOB}={key.name}"
        if quorum:
            self.known_pods.forget(key)
            return await self.list_pods(key.namespace, selector, quorum=True)
        if (told := self.known_pods.now(key)) is not None:
            return told
        known = self.known_pods.begin(key)
        pods = await self.list_pods(key.namespace, selector)
        self.known_pods.keep(key, known, pods)
        return pods

    async def list_pods(self, namespace: str, labels: str, *, quorum: bool = False) -> list[Json]:
        """The pods of `namespace` whose labels match, as far as they are read here; `quorum`: as the store has
        them now. Raises ApiError."""
        floor = "" if quorum or not self._newest_pod else str(self._newest_pod)
        try:
            found = await self.api.listing(PODS, namespace, labels=labels, not_older_than=floor, shape=PodList)
        except VersionAhead:
            # The store was set back, from a backup: what was seen does not count any more.
            self._newest_pod = 0
            found = await self.api.listing(PODS, namespace, labels=labels, shape=PodList)
        for pod in found.items:
            self.saw_pod(str(pod["metadata"].get("resourceVersion")))
        return found.items
