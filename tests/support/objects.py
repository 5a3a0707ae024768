"""Small objects for tests of an API server, and the events of a watch."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from ringtrain_operator.cluster.api.resources import ApiResource

Json = dict[str, Any]
CONFIG_MAPS = ApiResource("v1", "ConfigMap", "configmaps")
NAMESPACES = ApiResource("v1", "Namespace", "namespaces", namespaced=False)
CUSTOM_RESOURCE_DEFINITIONS = ApiResource(
    "apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False
)


def subresource(resource: ApiResource, name: str, part: str) -> ApiResource:
    """Return the API path of a subresource that is created by POST: a pod's `binding`, an account's `token`."""
    return ApiResource(resource.api_version, part, f"{resource.plural}/{name}/{part}")


def config_map(name: str, labels: dict[str, str] | None = None, **data: str) -> Json:
    """Return a ConfigMap with `data`."""
    return {"metadata": {"name": name, "labels": labels or {}}, "data": data}


def pod(name: str, **spec: Any) -> Json:
    """Return a pod with one container, which no kubelet runs. `spec` is merged into its spec."""
    containers = [{"name": "main", "image": "none"}]
    return {"metadata": {"name": name}, "spec": {"containers": containers, **spec}}


def kubeconfig(cluster: dict[str, str], user: dict[str, str], **context: str) -> Json:
    """Return a kubeconfig with one cluster, user and context."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "me", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "me", **context}}],
        "current-context": "test",
    }


async def next_event(events: AsyncIterator[Json]) -> tuple[str, str]:
    """Type and object name of the next event that is not a bookmark."""
    async with asyncio.timeout(60):
        async for event in events:
            if event["type"] != "BOOKMARK":
                return event["type"], event["object"]["metadata"]["name"]
    raise AssertionError("the watch ended")
