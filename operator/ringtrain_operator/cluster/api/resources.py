"""Kinds of Kubernetes objects that the operator uses, and their API paths."""

from dataclasses import dataclass

from ... import contract
from ...spec.parts import CLUSTER, TEMPLATE_PLURALS


@dataclass(frozen=True)
class ApiResource:
    """A kind of object: API group, plural name, and whether it belongs to a namespace."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Return the API path of a collection of objects, of one object, or of its subresource."""
        root = f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"
        inside = f"/namespaces/{namespace}" if namespace and self.namespaced else ""
        tail = "".join(f"/{part}" for part in (name, subresource) if part)
        return f"{root}{inside}/{self.plural}{tail}"


JOBS = ApiResource(contract.API_VERSION, contract.KIND, contract.PLURAL)
TEMPLATES = {
    kind: ApiResource(contract.API_VERSION, kind, plural, namespaced=kind != CLUSTER)
    for kind, plural in TEMPLATE_PLURALS.items()
}
PODS = ApiResource("v1", "Pod", "pods")
CONFIG_MAPS = ApiResource("v1", "ConfigMap", "configmaps")
SECRETS = ApiResource("v1", "Secret", "secrets")
SERVICES = ApiResource("v1", "Service", "services")
SERVICE_ACCOUNTS = ApiResource("v1", "ServiceAccount", "serviceaccounts")
EVENTS = ApiResource("v1", "Event", "events")
POD_TEMPLATES = ApiResource("v1", "PodTemplate", "podtemplates")
NODES = ApiResource("v1", "Node", "nodes", namespaced=False)
NETWORK_POLICIES = ApiResource("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
LEASES = ApiResource("coordination.k8s.io/v1", "Lease", "leases")

COMPANIONS = (SERVICES, SERVICE_ACCOUNTS, NETWORK_POLICIES)
"""Objects of a job other than pods and its Secret."""
BY_KIND = {r.kind: r for r in (JOBS, PODS, SECRETS, POD_TEMPLATES, *COMPANIONS)}
"""Kinds that plans create and delete, except PodGroups and ProvisioningRequests."""


def pod_groups(api_version: str) -> ApiResource:
    """Return the resource of PodGroups in `api_version`, which is different for each gang scheduler."""
    return ApiResource(api_version, "PodGroup", "podgroups")


def provisioning_requests(api_version: str) -> ApiResource:
    """Return the resource of ProvisioningRequests, with which jobs ask cluster autoscalers for nodes."""
    return ApiResource(api_version, "ProvisioningRequest", "provisioningrequests")


def resource_of(kind: str, api_version: str) -> ApiResource:
    """Return the resource of a kind. `api_version` matters only for PodGroups and ProvisioningRequests."""
    if kind in BY_KIND:
        return BY_KIND[kind]
    return pod_groups(api_version) if kind == "PodGroup" else provisioning_requests(api_version)
