"""Behavior that Ringtrain expects of an API server: the same tests on the fake and on the real one."""

import asyncio
from contextlib import aclosing

import pytest
from support.cluster import OpenCluster, namespace_of
from support.objects import CONFIG_MAPS, Json, config_map, next_event, pod

from ringtrain_operator.cluster.api.errors import (
    AlreadyExists,
    Conflict,
    Gone,
    NotFound,
    Unprocessable,
    VersionAhead,
)
from ringtrain_operator.cluster.api.resources import JOBS, LEASES, PODS, SECRETS, ApiResource
from ringtrain_operator.cluster.versions import ResourceVersions


async def test_a_created_object_has_the_servers_own_metadata(open_cluster: OpenCluster) -> None:
    """uid, resourceVersion and creationTimestamp are the server's; a second create is AlreadyExists."""
    async with namespace_of(open_cluster()) as (c, ns):
        made = await c.api.create(CONFIG_MAPS, ns, config_map("a", k="v"))
        assert made["metadata"]["uid"]
        assert made["metadata"]["creationTimestamp"].endswith("Z")
        assert int(made["metadata"]["resourceVersion"]) > 0
        assert made["metadata"]["namespace"] == ns
        with pytest.raises(AlreadyExists):
            await c.api.create(CONFIG_MAPS, ns, config_map("a"))


async def test_a_creation_that_is_not_read_tells_its_version(open_cluster: OpenCluster) -> None:
    """Also where only metadata is sent back."""
    async with namespace_of(open_cluster()) as (c, ns):
        version = await c.api.create_unread(PODS, ns, pod("p"))
        assert (await c.api.get(PODS, ns, "p"))["metadata"]["resourceVersion"] == version
        with pytest.raises(AlreadyExists):
            await c.api.create_unread(PODS, ns, pod("p"))


async def test_a_list_may_not_be_older_than_a_version(open_cluster: OpenCluster) -> None:
    """A list contains the object created at the minimum version; a future version raises VersionAhead."""
    async with namespace_of(open_cluster()) as (c, ns):
        for name in ("a", "b", "c"):
            version = await c.api.create_unread(PODS, ns, pod(name))
            found = await c.api.listing(PODS, ns, not_older_than=version)
            assert name in [p["metadata"]["name"] for p in found.items]
            assert int(found.version) >= int(version)
        with pytest.raises(VersionAhead):
            await c.api.listing(PODS, ns, not_older_than=str(int(version) + 1_000_000))


async def test_pods_are_read_no_older_than_they_were_seen(open_cluster: OpenCluster) -> None:
    """Each list shows what was made before it; a store that was set back is read anew."""
    async with open_cluster() as c:
        ns, versions = await c.new_namespace(), ResourceVersions(c.api)
        assert await versions.list_pods(ns, "") == []
        for count in (1, 2, 3):
            versions.record_pod_version(await c.api.create_unread(PODS, ns, pod(f"p{count}")))
            assert len(await versions.list_pods(ns, "")) == count
        versions.record_pod_version("1000000000")
        assert len(await versions.list_pods(ns, "")) == 3


async def test_pods_are_listed_at_once_though_others_write(open_cluster: OpenCluster) -> None:
    """A floor is a pod's version, which a cache of pods has reached, not the store's."""
    async with open_cluster() as c:
        ns, versions = await c.new_namespace(), ResourceVersions(c.api)
        versions.record_pod_version(await c.api.create_unread(PODS, ns, pod("p")))
        for number in range(5):
            await c.api.create(CONFIG_MAPS, ns, config_map(f"c{number}"))
            async with asyncio.timeout(2.5):  # a server waits 3 s for a version that does not come
                assert len(await versions.list_pods(ns, "")) == 1


async def test_generate_name_makes_names_apart(open_cluster: OpenCluster) -> None:
    """Two creations with one generateName are two objects whose names begin with it."""
    async with namespace_of(open_cluster()) as (c, ns):
        made = [await c.api.create(CONFIG_MAPS, ns, {"metadata": {"generateName": "gen-"}}) for _ in range(2)]
        names = {m["metadata"]["name"] for m in made}
        assert len(names) == 2
        assert all(n.startswith("gen-") for n in names)


async def test_what_is_absent_is_not_found(open_cluster: OpenCluster) -> None:
    """Reading, changing and deleting an absent object, and creating in an absent namespace, are NotFound."""
    async with namespace_of(open_cluster()) as (c, ns):
        with pytest.raises(NotFound):
            await c.api.get(CONFIG_MAPS, ns, "absent")
        with pytest.raises(NotFound):
            await c.api.delete(CONFIG_MAPS, ns, "absent")
        with pytest.raises(NotFound):
            await c.api.patch(CONFIG_MAPS, ns, "absent", {"data": {}})
        with pytest.raises(NotFound):
            await c.api.create(CONFIG_MAPS, "no-such-namespace", config_map("a"))


async def test_a_stale_write_is_a_conflict(open_cluster: OpenCluster) -> None:
    """A replace, or a patch that names a resourceVersion, fails once the object has changed."""
    async with namespace_of(open_cluster()) as (c, ns):
        first = await c.api.create(CONFIG_MAPS, ns, config_map("a", k="1"))
        await c.api.patch(CONFIG_MAPS, ns, "a", {"data": {"k": "2"}})
        with pytest.raises(Conflict):
            await c.api.replace(CONFIG_MAPS, ns, {**first, "data": {"k": "3"}})
        stale = {"metadata": {"resourceVersion": first["metadata"]["resourceVersion"]}, "data": {"k": "4"}}
        with pytest.raises(Conflict):
            await c.api.patch(CONFIG_MAPS, ns, "a", stale)
        assert (await c.api.get(CONFIG_MAPS, ns, "a"))["data"] == {"k": "2"}


async def test_a_write_that_changes_nothing_makes_no_version(open_cluster: OpenCluster) -> None:
    """So a controller that writes what is there already wakes nobody."""
    async with namespace_of(open_cluster()) as (c, ns):
        first = await c.api.create(CONFIG_MAPS, ns, config_map("a", k="1"))
        again = await c.api.patch(CONFIG_MAPS, ns, "a", {"data": {"k": "1"}})
        assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_merge_patch_removes_by_null_and_json_patch_tests(open_cluster: OpenCluster) -> None:
    """Null removes a member; a JSON patch whose `test` fails changes nothing and is Unprocessable."""
    async with namespace_of(open_cluster()) as (c, ns):
        await c.api.create(CONFIG_MAPS, ns, config_map("a", k="1", gone="x"))
        patched = await c.api.patch(CONFIG_MAPS, ns, "a", {"data": {"gone": None, "new": "y"}})
        assert patched["data"] == {"k": "1", "new": "y"}
        replace = {"op": "replace", "path": "/data/k", "value": "2"}
        test = {"op": "test", "path": "/data/k", "value": "other"}
        with pytest.raises(Unprocessable):
            await c.api.patch(CONFIG_MAPS, ns, "a", [test, replace], kind="json")
        patched = await c.api.patch(CONFIG_MAPS, ns, "a", [replace], kind="json")
        assert patched["data"]["k"] == "2"


async def test_status_is_a_world_of_its_own(open_cluster: OpenCluster) -> None:
    """A write to the object leaves its status, a write to its status leaves the rest."""
    async with namespace_of(open_cluster()) as (c, ns):
        made = await c.api.create(PODS, ns, {**pod("p"), "status": {"phase": "Succeeded"}})
        assert made["status"]["phase"] == "Pending"
        await c.api.patch(PODS, ns, "p", {"metadata": {"labels": {"a": "b"}}, "status": {"phase": "Failed"}})
        change = {"status": {"phase": "Running"}, "spec": {"nodeName": "elsewhere"}}
        after = await c.api.patch(PODS, ns, "p", change, subresource="status")
        assert after["status"]["phase"] == "Running"
        assert after["metadata"]["labels"]["a"] == "b"
        assert not after["spec"].get("nodeName")


@pytest.mark.parametrize(
    ("selector", "chosen"),
    [
        pytest.param("app=x", ["a", "b"], id="equal"),
        pytest.param("app!=x", ["c", "d"], id="not-equal-or-absent"),
        pytest.param("app", ["a", "b", "c"], id="present"),
        pytest.param("!app", ["d"], id="absent"),
        pytest.param("app in (x,y),role=w", ["b"], id="in-and-equal"),
        pytest.param("app notin (x)", ["c", "d"], id="not-in"),
    ],
)
async def test_label_selectors_choose(open_cluster: OpenCluster, selector: str, chosen: list[str]) -> None:
    """A list holds exactly what its selector matches."""
    async with namespace_of(open_cluster()) as (c, ns):
        labels = {"a": {"app": "x"}, "b": {"app": "x", "role": "w"}, "c": {"app": "y"}, "d": {"role": "v"}}
        for name, own in labels.items():
            await c.api.create(SECRETS, ns, {"metadata": {"name": name, "labels": own}})
        found = await c.api.select(SECRETS, ns, labels=selector)
        assert sorted(f["metadata"]["name"] for f in found) == chosen


async def test_pages_hold_everything_once(open_cluster: OpenCluster) -> None:
    """Pages of two hold five objects once each; metadata alone comes without their data."""
    async with namespace_of(open_cluster()) as (c, ns):
        assert [page async for page in c.api.pages(SECRETS, ns, metadata_only=True)] == [[]]
        for index in range(5):
            await c.api.create(SECRETS, ns, {"metadata": {"name": f"s{index}"}, "stringData": {"k": "v"}})
        sizes, items = [], []
        async for page in c.api.pages(SECRETS, ns, size=2, metadata_only=True):
            sizes.append(len(page))
            items.extend(page)
        assert sizes == [2, 2, 1]
        assert [i["metadata"]["name"] for i in items] == [f"s{i}" for i in range(5)]
        assert not any("data" in i for i in items)


async def test_a_watch_tells_what_happens_to_what_it_selects(open_cluster: OpenCluster) -> None:
    """An object that enters the selector is ADDED, one that leaves it is DELETED, in order."""
    async with namespace_of(open_cluster()) as (c, ns):
        start = (await c.api.create(CONFIG_MAPS, ns, config_map("other")))["metadata"]["resourceVersion"]
        async with aclosing(c.api.watch(CONFIG_MAPS, ns, labels="app=x", since=start)) as events:
            await c.api.create(CONFIG_MAPS, ns, config_map("a", {"app": "x"}))
            assert await next_event(events) == ("ADDED", "a")
            await c.api.patch(CONFIG_MAPS, ns, "a", {"data": {"k": "v"}})
            assert await next_event(events) == ("MODIFIED", "a")
            await c.api.patch(CONFIG_MAPS, ns, "a", {"metadata": {"labels": {"app": "y"}}})
            assert await next_event(events) == ("DELETED", "a")
            await c.api.patch(CONFIG_MAPS, ns, "other", {"metadata": {"labels": {"app": "x"}}})
            assert await next_event(events) == ("ADDED", "other")
            await c.api.delete(CONFIG_MAPS, ns, "other")
            assert await next_event(events) == ("DELETED", "other")


async def test_a_watch_from_too_long_ago_is_gone(open_cluster: OpenCluster) -> None:
    """A resource version that history does not reach back to is answered Gone."""
    async with namespace_of(open_cluster()) as (c, ns):
        if c.fake:  # the real server's history of a custom resource begins with its definition
            c.fake.store.compact()
        with pytest.raises(Gone):
            async with aclosing(c.api.watch(JOBS, ns, since="1")) as events:
                await next_event(events)


@pytest.mark.parametrize(
    ("resource", "obj", "part"),
    [
        pytest.param(CONFIG_MAPS, {"metadata": {"name": "Not_A_Name"}}, "metadata.name", id="bad-name"),
        pytest.param(
            PODS, {"metadata": {"name": "p"}, "spec": {"containers": []}}, "spec.containers", id="no-container"
        ),
        pytest.param(
            PODS,
            {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main"}]}},
            "spec.containers[0].image",
            id="no-image",
        ),
    ],
)
async def test_what_breaks_a_rule_is_invalid(
    open_cluster: OpenCluster, resource: ApiResource, obj: Json, part: str
) -> None:
    """The refusal names the field."""
    async with namespace_of(open_cluster()) as (c, ns):
        with pytest.raises(Unprocessable) as refused:
            await c.api.create(resource, ns, obj)
        assert part in refused.value.message


async def test_a_lease_is_taken_by_one(open_cluster: OpenCluster) -> None:
    """Of two replaces of one version, one wins and the other is a Conflict."""
    async with namespace_of(open_cluster()) as (c, ns):
        lease = await c.api.create(LEASES, ns, {"metadata": {"name": "l"}, "spec": {"leaseTransitions": 0}})
        takers = [{**lease, "spec": {"holderIdentity": who, "leaseTransitions": 1}} for who in ("a", "b")]
        answers = await asyncio.gather(*(c.api.replace(LEASES, ns, t) for t in takers), return_exceptions=True)
        assert sorted(type(a) for a in answers if isinstance(a, Exception)) == [Conflict]
