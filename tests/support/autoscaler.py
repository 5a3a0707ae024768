"""A stand-in for a cluster autoscaler that takes ProvisioningRequests: the CRD, and somebody who answers.

It checks that the templates which a request names are there, and knows nothing of nodes.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from ringtrain_operator.cluster.api.client import ApiClient
from ringtrain_operator.cluster.api.errors import Conflict, NotFound
from ringtrain_operator.cluster.api.resources import POD_TEMPLATES, provisioning_requests
from support.kubelet.pod import new_condition
from support.standin import again_and_again

Json = dict[str, Any]
REQUESTS = provisioning_requests("autoscaling.x-k8s.io/v1")
_ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_POD_SET = {
    "type": "object",
    "required": ["podTemplateRef", "count"],
    "properties": {
        "count": {"type": "integer", "format": "int32", "minimum": 1},
        "podTemplateRef": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
    },
}
_SPEC = {
    "type": "object",
    "required": ["provisioningClassName", "podSets"],
    "properties": {
        "provisioningClassName": {"type": "string", "maxLength": 253},
        "parameters": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 255}},
        "podSets": {"type": "array", "minItems": 1, "maxItems": 32, "items": _POD_SET},
    },
    "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "Value is immutable"}],
}
# Fields that the operator may write. Any other is dropped, which the test detects.
CRD: Json = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "provisioningrequests.autoscaling.x-k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
    },
    "spec": {
        "group": "autoscaling.x-k8s.io",
        "scope": "Namespaced",
        "names": {
            "kind": "ProvisioningRequest",
            "plural": "provisioningrequests",
            "singular": "provisioningrequest",
            "listKind": "ProvisioningRequestList",
        },
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "required": ["spec"],
                        "properties": {"spec": _SPEC, "status": _ANYTHING},
                    }
                },
            }
        ],
    },
}


@asynccontextmanager
async def provisioning(api: ApiClient, namespace: str) -> AsyncIterator[None]:
    """Provide the nodes of every request of the namespace within the block."""
    async with again_and_again(lambda: _answer(api, namespace)):
        yield


async def say(api: ApiClient, request: Json, kind: str, reason: str = "Done", message: str = "") -> None:
    """Set a condition of the request."""
    meta = request["metadata"]
    conditions = list((request.get("status") or {}).get("conditions") or ())
    patch = {"status": {"conditions": [*conditions, new_condition(kind, "True", reason, message)]}}
    await api.patch(REQUESTS, meta["namespace"], meta["name"], patch, subresource="status")


async def _answer(api: ApiClient, namespace: str) -> None:
    templates = {t["metadata"]["name"] for t in await api.select(POD_TEMPLATES, namespace)}
    for request in await api.select(REQUESTS, namespace):
        named = {one["podTemplateRef"]["name"] for one in request["spec"]["podSets"]}
        if named <= templates and not (request.get("status") or {}).get("conditions"):
            with suppress(Conflict, NotFound):
                await say(api, request, "Provisioned", "CapacityIsFound")
