"""Installs the operator's rights on an API server from its manifests, and requests its own token."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ringtrain_operator.cluster.api.client import ApiClient
from ringtrain_operator.cluster.api.errors import AlreadyExists
from ringtrain_operator.cluster.api.resources import SERVICE_ACCOUNTS, ApiResource
from support.documents import documents
from support.fakeapi.server import Call
from support.objects import NAMESPACES, subresource

ROOT = Path(__file__).parents[2]
Json = dict[str, Any]
RBAC = "rbac.authorization.k8s.io/v1"
INSTALLED = {
    "Namespace": NAMESPACES,
    "ServiceAccount": SERVICE_ACCOUNTS,
    "ClusterRole": ApiResource(RBAC, "ClusterRole", "clusterroles", namespaced=False),
    "ClusterRoleBinding": ApiResource(RBAC, "ClusterRoleBinding", "clusterrolebindings", namespaced=False),
    "Role": ApiResource(RBAC, "Role", "roles"),
    "RoleBinding": ApiResource(RBAC, "RoleBinding", "rolebindings"),
}


def manifests(path: Path = ROOT / "manifests" / "operator.yaml") -> list[Json]:
    """Return the objects of a manifest file."""
    return documents(path)


def beyond_rights(calls: Iterable[Call], objects: list[Json]) -> set[str]:
    """Return the operator's requests to the fake API server that the roles among `objects` do not allow."""
    roles = [obj for obj in objects if obj["kind"] in ("ClusterRole", "Role")]
    own = [rule for role in roles if not _is_aggregated(role) for rule in role["rules"]]
    asked = {call for call in calls if call.agent.startswith("ringtrain-operator")}
    return {f"{call.verb} {call.resource} {call.name or ''}".strip() for call in asked if not _allowed(call, own)}


def _is_aggregated(role: Json) -> bool:
    """Return whether it is a role for users."""
    return any(label.startswith("rbac.authorization.k8s.io/aggregate-to") for label in role["metadata"]["labels"])


def _allowed(call: Call, rules: list[Json]) -> bool:
    return any(
        call.resource in rule["resources"]
        and call.verb in rule["verbs"]
        and call.name in rule.get("resourceNames", [call.name])
        for rule in rules
    )


async def install_rights(api: ApiClient, objects: list[Json]) -> str:
    """Create namespace, account, roles and bindings; return a token of the operator's ServiceAccount."""
    account: Json = {}
    for obj in objects:
        resource = INSTALLED.get(obj["kind"])
        if resource is None:
            continue  # without a kubelet, the Deployment would not run: the operator is a process of the test
        try:
            await api.create(resource, obj["metadata"].get("namespace"), obj)
        except AlreadyExists:
            await api.replace(resource, obj["metadata"].get("namespace"), obj)
        if obj["kind"] == "ServiceAccount":
            account = obj["metadata"]
    return await token_of(api, account["namespace"], account["name"])


async def token_of(api: ApiClient, namespace: str, name: str) -> str:
    """Return a token of a ServiceAccount, as the kubelet would request it for a pod."""
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": 7200},
    }
    answer = await api.create(subresource(SERVICE_ACCOUNTS, name, "token"), namespace, request)
    return str(answer["status"]["token"])
