"""The schema of pod templates as the API server has it: jobs may use every field that the cluster knows."""

import logging
from dataclasses import replace

from ..spec.pod_schema import PodSchema, packaged_pod_spec_schema
from .api.client import ApiClient
from .api.errors import ApiError

log = logging.getLogger(__name__)

_INDEX, _GROUP = "/openapi/v3", "api/v1"


async def read_pod_schema(api: ApiClient) -> PodSchema:
    """The server's own schema. Raises ApiError, also for an answer that is no such document."""
    return await _read_served_schema(api, f"{_INDEX}/{_GROUP}")


class ServedPodSchema:
    """`current` is what the server said last; until it has said anything, the schema of this package."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._address = ""
        self.current = packaged_pod_spec_schema()

    async def refresh(self) -> None:
        """Read the schema if the server has another one than before. A failure is logged and changes nothing."""
        try:
            index = await self._api.raw_get(_INDEX)
            # the address holds a hash of the document
            address = str(index["paths"][_GROUP]["serverRelativeURL"])
            if address != self._address:
                self.current = await _read_served_schema(self._api, address)
                self._address = address
        except (ApiError, KeyError, TypeError) as exc:
            log.warning("pod templates are checked by Kubernetes %s: %s", self.current.version, exc)


async def _read_served_schema(api: ApiClient, path: str) -> PodSchema:
    document = await api.raw_get(path)
    version = await api.raw_get("/version")
    try:
        schema = PodSchema.of_openapi(document, f"{version['major']}.{version['minor']}")
    except (ValueError, KeyError, TypeError) as exc:
        raise ApiError(f"the API server's schema could not be read: {exc}") from exc
    return replace(schema, way_out=" (asked from the API server)")
