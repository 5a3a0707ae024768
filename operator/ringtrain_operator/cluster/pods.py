"""Reading pods from the API server's watch cache, never older than what this process knows already."""

from typing import Any

from ringtrain_operator.cluster.api import PODS, ApiClient, VersionAhead

Json = dict[str, Any]


class PodReader:
    """Lists of pods, each at least as new as every pod that this process was told of, has read or has made before.

    A list asks for `NotOlderThan` the newest version of any pod known: the API server answers from its watch
    cache, and waits until that has caught up. A quorum read may fetch every pod of the namespace from etcd,
    whatever the selector: docs/decisions/0010.
    """

    def __init__(self, api: ApiClient) -> None:
        self.api = api
        self._newest = 0

    def saw(self, version: str) -> None:
        """A pod was seen at `version`, its resourceVersion: no later list is older."""
        # Versions are ordered integers; a server with any other kind is read by quorum each time. A list's own
        # version does not count: it is the whole store's, which a cache of pods reaches only when a pod changes.
        if version.isdecimal():
            self._newest = max(self._newest, int(version))

    async def select(self, namespace: str, labels: str, *, quorum: bool = False) -> list[Json]:
        """The pods of `namespace` whose labels match; `quorum`: as the store has them now. Raises ApiError."""
        floor = "" if quorum or not self._newest else str(self._newest)
        try:
            found = await self.api.listing(PODS, namespace, labels=labels, not_older_than=floor)
        except VersionAhead:
            # The store was set back, from a backup: what was seen does not count any more.
            self._newest = 0
            found = await self.api.listing(PODS, namespace, labels=labels)
        for pod in found.items:
            self.saw(str(pod["metadata"].get("resourceVersion")))
        return found.items
