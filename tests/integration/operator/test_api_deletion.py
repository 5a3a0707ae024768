"""Deletion on the fake API server and on the real one: preconditions, finalizers, owners, nodes."""

import pytest
from support.cluster import OpenCluster, namespace_of
from support.objects import CONFIG_MAPS, Json, config_map, pod, subresource

from ringtrain_operator.cluster.api.errors import Conflict, NotFound
from ringtrain_operator.cluster.api.resources import PODS, SECRETS


async def test_a_delete_keeps_to_its_preconditions(open_cluster: OpenCluster) -> None:
    """A delete for another uid is a Conflict and deletes nothing."""
    async with namespace_of(open_cluster()) as (c, ns):
        made = await c.api.create(CONFIG_MAPS, ns, config_map("a"))
        with pytest.raises(Conflict):
            await c.api.delete(CONFIG_MAPS, ns, "a", uid="3b9b5f9e-0000-4000-8000-000000000000")
        await c.api.delete(CONFIG_MAPS, ns, "a", uid=made["metadata"]["uid"])
        with pytest.raises(NotFound):
            await c.api.get(CONFIG_MAPS, ns, "a")


async def test_a_finalizer_holds_an_object(open_cluster: OpenCluster) -> None:
    """A deleted object with a finalizer stays, marked, until the finalizer is taken off."""
    async with namespace_of(open_cluster()) as (c, ns):
        held = {"metadata": {"name": "a", "finalizers": ["example.com/hold"]}}
        await c.api.create(CONFIG_MAPS, ns, held)
        await c.api.delete(CONFIG_MAPS, ns, "a")
        assert (await c.api.get(CONFIG_MAPS, ns, "a"))["metadata"]["deletionTimestamp"]
        await c.api.patch(CONFIG_MAPS, ns, "a", {"metadata": {"finalizers": None}})
        await c.until_gone(CONFIG_MAPS, ns, "a")


async def test_dependents_go_with_their_owner(open_cluster: OpenCluster) -> None:
    """The garbage collector deletes what only a deleted object owned, and what was born an orphan."""
    async with namespace_of(open_cluster()) as (c, ns):
        owner = await c.api.create(CONFIG_MAPS, ns, config_map("owner"))
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
        child: Json = {"metadata": {"name": "child", "ownerReferences": [reference]}}
        await c.api.create(SECRETS, ns, child)
        await c.api.delete(CONFIG_MAPS, ns, "owner")
        await c.until_gone(SECRETS, ns, "child")
        await c.api.create(SECRETS, ns, child)
        await c.until_gone(SECRETS, ns, "child")


async def test_a_bound_pod_is_deleted_by_its_node(open_cluster: OpenCluster) -> None:
    """A pod without a node goes at once; one with a node is marked and waits for grace 0."""
    async with namespace_of(open_cluster()) as (c, ns):
        for name in ("free", "bound"):
            await c.api.create(PODS, ns, pod(name, terminationGracePeriodSeconds=7))
        target = {"target": {"apiVersion": "v1", "kind": "Node", "name": "node-a"}, "metadata": {"name": "bound"}}
        binding = {"apiVersion": "v1", "kind": "Binding", **target}
        await c.api.create(subresource(PODS, "bound", "binding"), ns, binding)
        with pytest.raises(Conflict):
            await c.api.create(subresource(PODS, "bound", "binding"), ns, binding)
        for name in ("free", "bound"):
            await c.api.delete(PODS, ns, name)
        await c.until_gone(PODS, ns, "free")
        marked = await c.api.get(PODS, ns, "bound")
        assert marked["spec"]["nodeName"] == "node-a"
        assert marked["metadata"]["deletionGracePeriodSeconds"] == 7
        await c.api.delete(PODS, ns, "bound", grace_period_s=0)
        await c.until_gone(PODS, ns, "bound")
