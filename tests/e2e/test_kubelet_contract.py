"""The cluster's kubelets pass the same cases as the stand-in kubelet of the integration tests."""

import os

import pytest
from e2e.conftest import BARE, WORKER, Kubectl
from support.kubelet_cases import CASES, Case
from support.nodes_under_test import NodesUnderTest
from support.objects import subresource

from ringtrain_operator.cluster.api.client import ApiClient
from ringtrain_operator.cluster.api.connection import ApiConnection
from ringtrain_operator.cluster.api.resources import PODS


@pytest.mark.usefixtures("containers")
@pytest.mark.parametrize("case", CASES)
async def test_the_clusters_kubelets(privileged: Kubectl, case: Case) -> None:
    """Pods of a namespace without Pod Security: one of the images runs as root."""
    privileged("wait", "serviceaccount/default", "--for=create", "--timeout=60s")
    async with ApiClient(ApiConnection.from_env(os.environ), user_agent="test") as api:

        async def evict(namespace: str, name: str) -> None:
            eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
            await api.create(subresource(PODS, name, "eviction"), namespace, eviction)

        nodes = NodesUnderTest(api, privileged.namespace, {"worker": WORKER, "root": BARE}, evict)
        async with nodes.recorded():
            await case(nodes)
