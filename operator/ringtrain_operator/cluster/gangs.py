"""Discovery of the gang schedulers in this cluster, and reader of the PodGroups of a job."""

import asyncio
from collections.abc import Mapping
from typing import Any

from .. import contract
from ..observe.pods import owned_by
from ..placement.base import GangScheduler
from ..placement.gangs import SCHEDULERS, GangsView, GroupView, view_group
from .api.client import ApiClient
from .api.errors import NotFound
from .api.resources import ApiResource, pod_groups
from .memory import ReconcileMemory

Json = dict[str, Any]


class ClusterGangs:
    """Reader of gang schedulers and their PodGroups in this cluster.

    `allowed`: schedulerName of each gang scheduler that the installation permits. `served`: apiVersion of each of these
    schedulers whose API the cluster serves.
    """

    def __init__(self, api: ApiClient, allowed: Mapping[str, str]) -> None:
        self._api = api
        self._allowed = allowed
        self.served: Mapping[str, str] = {}

    async def find(self) -> None:
        """Find out which gang schedulers are installed in the cluster. Raises ApiError if a request fails."""
        found = {name: await self._served(SCHEDULERS[name]) for name in self._allowed}
        self.served = {name: version for name, version in found.items() if version}

    def watched(self) -> tuple[ApiResource, ...]:
        """Return the kinds to watch."""
        return tuple(pod_groups(version) for version in self.served.values())

    async def observe(self, job: Mapping[str, Any], memory: ReconcileMemory) -> GangsView:
        """Return the gang schedulers in this cluster and the job's PodGroups. Raises ApiError if a request fails."""
        if not (job.get("status") or {}).get("attempt"):
            return GangsView(self._allowed, self.served)
        return GangsView(self._allowed, self.served, await memory.groups.read(lambda: self._read(job)))

    async def _read(self, job: Mapping[str, Any]) -> tuple[GroupView, ...]:
        found = await asyncio.gather(*(self._read_version(job, version) for version in self.served.values()))
        return tuple(group for groups in found for group in groups)

    async def _read_version(self, job: Mapping[str, Any], version: str) -> list[GroupView]:
        meta = job["metadata"]
        selector = f"{contract.LABEL_JOB}={meta['name']},{contract.LABEL_MANAGED_BY}={contract.MANAGED_BY}"
        try:
            groups = await self._api.select(pod_groups(version), meta["namespace"], labels=selector)
        except NotFound:
            return []  # it was uninstalled meanwhile
        return [view_group(group, version) for group in groups if owned_by(group, meta["uid"])]

    async def _served(self, scheduler: GangScheduler) -> str:
        """Return the apiVersion of this scheduler's PodGroups; empty if the cluster does not serve them."""
        for version in scheduler.versions:
            api_version = f"{scheduler.api_group}/{version}"
            try:
                kinds = await self._api.raw_get(f"/apis/{api_version}")
            except NotFound:
                continue
            if any(kind.get("name") == "podgroups" for kind in kinds.get("resources") or ()):
                return api_version
        return ""
