"""Access to cluster autoscalers that support ProvisioningRequests: discovery of the API, and a job's requests."""

import asyncio
from collections.abc import Mapping
from typing import Any

from .. import contract
from ..build.names import ObjectRef
from ..observe.pods import owned_by
from ..placement.provisioning import AUTOSCALER_GROUP, ProvisioningView, view_request
from .api.client import ApiClient
from .api.errors import NotFound
from .api.resources import POD_TEMPLATES, ApiResource, provisioning_requests
from .memory import ReconcileMemory

Json = dict[str, Any]

# The newest first.
VERSIONS = ("v1", "v1beta1")


class ClusterAutoscaler:
    """Reader of ProvisioningRequests. `allowed`: whether to use them. `version`: apiVersion; empty if not served."""

    def __init__(self, api: ApiClient, allowed: bool) -> None:
        self._api = api
        self._allowed = allowed
        self.version = ""

    async def find(self) -> None:
        """Find out which version of ProvisioningRequests the API server serves. Raises ApiError if a request fails."""
        if not self._allowed:
            return
        found = await self._api.served_version(AUTOSCALER_GROUP, VERSIONS)
        self.version = f"{AUTOSCALER_GROUP}/{found}" if found else ""

    def watched(self) -> tuple[ApiResource, ...]:
        """Return the kinds to watch."""
        return (provisioning_requests(self.version),) if self.version else ()

    async def observe(self, job: Mapping[str, Any], memory: ReconcileMemory) -> ProvisioningView:
        """Return the job's ProvisioningRequests and other state of the autoscaler's API. Raises ApiError if a request
        fails."""
        if not self.version or not (job.get("status") or {}).get("attempt"):
            return ProvisioningView(self._allowed, self.version)
        return await memory.provisioning.read(lambda: self._read(job))

    async def _read(self, job: Mapping[str, Any]) -> ProvisioningView:
        meta = job["metadata"]
        selector = f"{contract.LABEL_JOB}={meta['name']},{contract.LABEL_MANAGED_BY}={contract.MANAGED_BY}"
        kinds = (provisioning_requests(self.version), POD_TEMPLATES)
        try:
            found = await asyncio.gather(
                *(self._api.select(kind, meta["namespace"], labels=selector) for kind in kinds)
            )
        except NotFound:  # it was uninstalled meanwhile
            return ProvisioningView(self._allowed, self.version)
        requests, templates = ([one for one in some if owned_by(one, meta["uid"])] for some in found)
        return ProvisioningView(
            self._allowed,
            self.version,
            tuple(view_request(one, self.version) for one in requests),
            {ObjectRef("PodTemplate", t["metadata"]["name"]): str(t["metadata"].get("uid") or "") for t in templates},
        )
