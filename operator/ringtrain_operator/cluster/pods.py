"""Reading pods from the API server's watch cache, never older than what this process knows already."""

from typing import Any

from ringtrain_operator.cluster.api import PODS, ApiClient, VersionAhead

Json = dict[str, Any]


class PodReader:
    """Lists of pods, each at least as new as all that this process was told, has read or has made before.

    The first list is a quorum read, so it shows what an earlier leader made. Every later one asks for
    `NotOlderThan` the newest version known: the API server answers from its watch cache, and waits until that has
    caught up. A quorum read may fetch every pod of the namespace from etcd, whatever the selector:
    docs/decisions/0010.
    """

    def __init__(self, api: ApiClient) -> None:
        self.api = api
        self._newest = 0
        self._anchored = False

    def saw(self, version: str) -> None:
        """Something about a pod was seen at `version`, a resourceVersion: no later list is older."""
        # Versions are ordered integers; a server with any other kind is read by quorum each time.
        if version.isdecimal():
            self._newest = max(self._newest, int(version))

    async def select(self, namespace: str, labels: str) -> list[Json]:
        """The pods of `namespace` whose labels match. Raises ApiError."""
        floor = str(self._newest) if self._anchored and self._newest else ""
        try:
            found = await self.api.listing(PODS, namespace, labels=labels, not_older_than=floor)
        except VersionAhead:
            # The store was set back, from a backup: what was seen does not count any more.
            self._newest, self._anchored = 0, False
            found = await self.api.listing(PODS, namespace, labels=labels)
        self._anchored = True
        self.saw(found.version)
        return found.items
