"""Small objects for tests of an API server."""

from typing import Any

from ringtrain_operator.cluster.api import Resource

Json = dict[str, Any]
CONFIG_MAPS = Resource("v1", "ConfigMap", "configmaps")


def config_map(name: str, labels: dict[str, str] | None = None, **data: str) -> Json:
    """A ConfigMap with `data`."""
    return {"metadata": {"name": name, "labels": labels or {}}, "data": data}


def pod(name: str, **spec: Any) -> Json:
    """A pod of one container that nobody runs; `spec` is merged into its spec."""
    containers = [{"name": "main", "image": "none"}]
    return {"metadata": {"name": name}, "spec": {"containers": containers, **spec}}
