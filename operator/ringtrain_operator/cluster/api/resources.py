"""The kinds that the operator speaks about, and their paths."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ringtrain_operator import contract


@dataclass(frozen=True)
class Resource:
    """One kind of object and where the API serves it."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """The path of the collection, of one object, or of its subresource."""
        root = f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"
        inside = f"/namespaces/{namespace}" if namespace and self.namespaced else ""
        tail = "".join(f"/{part}" for part in (name, subresource) if part)
        return f"{root}{inside}/{self.plural}{tail}"


JOBS = Resource(contract.API_VERSION, contract.KIND, contract.PLURAL)
PODS = Resource("v1", "Pod", "pods")
SECRETS = Resource("v1", "Secret", "secrets")
SERVICES = Resource("v1", "Service", "services")
SERVICE_ACCOUNTS = Resource("v1", "ServiceAccount", "serviceaccounts")
EVENTS = Resource("v1", "Event", "events")
NAMESPACES = Resource("v1", "Namespace", "namespaces", namespaced=False)
NODES = Resource("v1", "Node", "nodes", namespaced=False)
NETWORK_POLICIES = Resource("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
LEASES = Resource("coordination.k8s.io/v1", "Lease", "leases")
CUSTOM_RESOURCE_DEFINITIONS = Resource(
    "apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False
)

_BY_KIND = {
    (r.api_version, r.kind): r
    for r in (JOBS, PODS, SECRETS, SERVICES, SERVICE_ACCOUNTS, NETWORK_POLICIES, LEASES, EVENTS, NAMESPACES, NODES)
}


def resource_of(obj: Mapping[str, Any]) -> Resource:
    """The resource of a manifest, by its apiVersion and kind. Raises ValueError for one we never touch."""
    found = _BY_KIND.get((obj.get("apiVersion", ""), obj.get("kind", "")))
    if found is None:
        raise ValueError(f"the operator does not handle {obj.get('apiVersion')} {obj.get('kind')}")
    return found
