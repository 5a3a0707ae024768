"""Defaults, fixed fields, generations and selections: the same tests on the fake API server and on the real one."""

import asyncio
from contextlib import aclosing
from typing import Any

import pytest
from support.cluster import OpenCluster, namespace_of
from support.objects import CONFIG_MAPS, NAMESPACES, config_map, next_event, pod

from ringtrain_operator.cluster.api.errors import Conflict, Forbidden, Unprocessable
from ringtrain_operator.cluster.api.resources import NETWORK_POLICIES, PODS, SECRETS

Change = dict[str, Any]


async def test_pods_and_secrets_have_defaults(open_cluster: OpenCluster) -> None:
    """As a controller reads them: restart policy, grace period, account, phase; the type of a Secret."""
    async with namespace_of(open_cluster()) as (c, ns):
        made = await c.api.create(PODS, ns, pod("p"))
        spec = made["spec"]
        assert (spec["restartPolicy"], spec["terminationGracePeriodSeconds"]) == ("Always", 30)
        assert (spec["serviceAccountName"], made["status"]["phase"]) == ("default", "Pending")
        assert (await c.api.create(SECRETS, ns, {"metadata": {"name": "s"}}))["type"] == "Opaque"


async def test_a_pods_spec_is_fixed(open_cluster: OpenCluster) -> None:
    """But for the deadline; labels may change."""
    async with namespace_of(open_cluster()) as (c, ns):
        await c.api.create(PODS, ns, pod("p"))
        with pytest.raises(Unprocessable, match="pod updates may not change fields"):
            await c.api.patch(PODS, ns, "p", {"spec": {"restartPolicy": "Never"}})
        change = {"spec": {"activeDeadlineSeconds": 7}, "metadata": {"labels": {"a": "b"}}}
        after = await c.api.patch(PODS, ns, "p", change)
        assert (after["spec"]["activeDeadlineSeconds"], after["metadata"]["labels"]) == (7, {"a": "b"})


async def test_a_generation_counts_changes_of_the_spec(open_cluster: OpenCluster) -> None:
    """Metadata does not count, nor what a client writes there."""
    async with namespace_of(open_cluster()) as (c, ns):
        spec = {"podSelector": {}, "policyTypes": ["Ingress"]}
        made = await c.api.create(NETWORK_POLICIES, ns, {"metadata": {"name": "n", "generation": 7}, "spec": spec})
        assert made["metadata"]["generation"] == 1
        after = await c.api.patch(NETWORK_POLICIES, ns, "n", {"metadata": {"labels": {"a": "b"}, "generation": 9}})
        assert after["metadata"]["generation"] == 1
        after = await c.api.patch(NETWORK_POLICIES, ns, "n", {"spec": {"policyTypes": ["Ingress", "Egress"]}})
        assert after["metadata"]["generation"] == 2


@pytest.mark.parametrize(
    ("change", "data"),
    [
        ([{"op": "add", "path": "/data/new", "value": "2"}], {"k": "1", "new": "2"}),
        ([{"op": "remove", "path": "/data/k"}], {}),
        (
            [{"op": "test", "path": "/data/k", "value": "1"}, {"op": "replace", "path": "/data/k", "value": "3"}],
            {"k": "3"},
        ),
        ([{"op": "remove", "path": "/data/absent"}], None),
        ([{"op": "replace", "path": "/data/absent", "value": "2"}], {"k": "1", "absent": "2"}),
    ],
    ids=["add", "remove", "test", "remove-absent", "replace-absent"],
)
async def test_a_json_patch_changes_all_or_nothing(
    open_cluster: OpenCluster, change: list[Change], data: dict[str, str] | None
) -> None:
    """An absent path that is to be removed refuses the patch."""
    async with namespace_of(open_cluster()) as (c, ns):
        await c.api.create(CONFIG_MAPS, ns, config_map("a", k="1"))
        if data is None:
            first = {"op": "add", "path": "/data/first", "value": "x"}
            with pytest.raises(Unprocessable):
                await c.api.patch(CONFIG_MAPS, ns, "a", [first, *change], kind="json")
        else:
            await c.api.patch(CONFIG_MAPS, ns, "a", change, kind="json")
        assert (await c.api.get(CONFIG_MAPS, ns, "a")).get("data", {}) == ({"k": "1"} if data is None else data)


async def test_a_replace_of_another_uid_is_a_conflict(open_cluster: OpenCluster) -> None:
    """Whoever read a former object of that name does not overwrite this one."""
    async with namespace_of(open_cluster()) as (c, ns):
        made = await c.api.create(CONFIG_MAPS, ns, config_map("a", k="1"))
        other = {**made["metadata"], "uid": "3b9b5f9e-0000-4000-8000-000000000000"}
        with pytest.raises(Conflict):
            await c.api.replace(CONFIG_MAPS, ns, {**made, "metadata": other})


@pytest.mark.parametrize(
    ("selector", "chosen"),
    [
        ("metadata.name=a", ["a"]),
        ("metadata.name!=a", ["b"]),
        ("spec.nodeName=", ["a", "b"]),
        ("status.phase=Running", ["b"]),
        ("status.phase=Running,metadata.name=a", []),
    ],
)
async def test_field_selectors_choose(open_cluster: OpenCluster, selector: str, chosen: list[str]) -> None:
    """A list of pods holds exactly what its selector matches."""
    async with namespace_of(open_cluster()) as (c, ns):
        for name in ("a", "b"):
            await c.api.create(PODS, ns, pod(name))
        await c.api.patch(PODS, ns, "b", {"status": {"phase": "Running"}}, subresource="status")
        found = await c.api.select(PODS, ns, fields=selector)
        assert sorted(one["metadata"]["name"] for one in found) == chosen


async def test_a_watch_without_a_version_begins_with_what_is_there(open_cluster: OpenCluster) -> None:
    """Each object is ADDED, then what happens to it follows."""
    async with namespace_of(open_cluster()) as (c, ns):
        for name in ("a", "b"):
            await c.api.create(CONFIG_MAPS, ns, config_map(name, {"app": "x"}))
        async with aclosing(c.api.watch(CONFIG_MAPS, ns, labels="app=x")) as events, asyncio.timeout(60):
            seen = [await next_event(events) for _ in range(2)]
            await c.api.delete(CONFIG_MAPS, ns, "a")
            assert sorted(seen) == [("ADDED", "a"), ("ADDED", "b")]
            assert await next_event(events) == ("DELETED", "a")


async def test_a_dependent_with_another_owner_stays(open_cluster: OpenCluster) -> None:
    """Until the last of its owners is deleted."""
    async with namespace_of(open_cluster()) as (c, ns):
        owners = [await c.api.create(CONFIG_MAPS, ns, config_map(name)) for name in ("first", "second")]
        references = [
            {"apiVersion": "v1", "kind": "ConfigMap", "name": one["metadata"]["name"], "uid": one["metadata"]["uid"]}
            for one in owners
        ]
        await c.api.create(SECRETS, ns, {"metadata": {"name": "both", "ownerReferences": references}})
        await c.api.create(SECRETS, ns, {"metadata": {"name": "one", "ownerReferences": references[:1]}})
        await c.api.delete(CONFIG_MAPS, ns, "first")
        await c.until_gone(SECRETS, ns, "one")
        assert (await c.api.get(SECRETS, ns, "both"))["metadata"]["name"] == "both"
        await c.api.delete(CONFIG_MAPS, ns, "second")
        await c.until_gone(SECRETS, ns, "both")


async def test_a_namespace_that_ends_takes_nothing_new(open_cluster: OpenCluster) -> None:
    """A deleted namespace stays as long as it has a finalizer."""
    async with open_cluster() as c:
        ns = await c.new_namespace()
        await c.api.patch(NAMESPACES, None, ns, {"metadata": {"finalizers": ["example.com/hold"]}})
        await c.api.delete(NAMESPACES, None, ns)
        with pytest.raises(Forbidden, match="being terminated"):
            await c.api.create(CONFIG_MAPS, ns, config_map("late"))
        await c.api.patch(NAMESPACES, None, ns, {"metadata": {"finalizers": None}})
