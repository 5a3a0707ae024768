"""Schema of pod templates from the API server, so that jobs may use every field that the cluster knows."""

import logging
from dataclasses import replace

from ..spec.pod_schema import PodSchema, packaged_pod_spec_schema
from .api.client import ApiClient
from .api.errors import ApiError

log = logging.getLogger(__name__)

_INDEX, _GROUP = "/openapi/v3", "api/v1"


async def read_pod_schema(api: ApiClient) -> PodSchema:
    """Read the schema of pods from the API server. Raises ApiError, also if the answer is not a schema."""
    return await _read_served_schema(api, f"{_INDEX}/{_GROUP}")


class ServedPodSchema:
    """Cache of the API server's pod schema. `current`: the last schema read, at first the one in this package."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._address = ""
        self.current = packaged_pod_spec_schema()

    async def refresh(self) -> None:
        """Read the schema again if the server has another schema. A failure is logged and changes nothing."""
        try:
            index = await self._api.raw_get(_INDEX)
            # The address has a hash of the document.
            address = str(index["paths"][_GROUP]["serverRelativeURL"])
            if address != self._address:
                self.current = await _read_served_schema(self._api, address)
                self._address = address
        except (ApiError, KeyError, TypeError) as exc:
            log.warning(
                "the schema of pod templates could not be read from the API server; the schema of "
                "Kubernetes %s is used: %s",
                self.current.version,
                exc,
            )


async def _read_served_schema(api: ApiClient, path: str) -> PodSchema:
    document = await api.raw_get(path)
    version = await api.raw_get("/version")
    try:
        schema = PodSchema.from_openapi(document, f"{version['major']}.{version['minor']}")
    except (ValueError, KeyError, TypeError) as exc:
        raise ApiError(f"the API server's schema could not be read: {exc}") from exc
    return replace(schema, way_out=" (according to the API server)")
