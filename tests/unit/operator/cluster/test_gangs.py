"""Gang schedulers of a cluster, and the API requests that a job's groups cost."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.fakeapi import FakeApi
from support.fakeapi.resources import KINDS, Catalogue, Kind
from support.fakeapi.store import Store

from ringtrain_operator.cluster.api.client import ApiClient
from ringtrain_operator.cluster.api.connection import ApiConnection
from ringtrain_operator.cluster.gangs import ClusterGangs
from ringtrain_operator.cluster.memory import ReconcileMemory

NAMES = {"Kubernetes": "", "Coscheduling": "scheduler-plugins-scheduler", "Volcano": "volcano"}
OTHERS = tuple(kind for kind in KINDS if kind.kind != "PodGroup")
META = {"name": "digits", "namespace": "default", "uid": "1"}
JOB: dict[str, Any] = {"metadata": META, "status": {"attempt": 1}}


@asynccontextmanager
async def cluster(*apis: str) -> AsyncIterator[tuple[FakeApi, ClusterGangs]]:
    """An API server with PodGroups in these groups and versions, and what the operator makes of it."""
    groups = (Kind(*api.split("/"), "PodGroup", "podgroups") for api in apis)
    async with FakeApi(Store(Catalogue((*OTHERS, *groups)))) as fake, ApiClient(ApiConnection(fake.url)) as api:
        yield fake, ClusterGangs(api, NAMES)


@pytest.mark.parametrize(
    ("apis", "served"),
    [
        pytest.param((), {}, id="none"),
        pytest.param(("scheduling.k8s.io/v1alpha2",), {"Kubernetes": "scheduling.k8s.io/v1alpha2"}, id="alpha"),
        pytest.param(
            ("scheduling.k8s.io/v1alpha2", "scheduling.k8s.io/v1beta1"),
            {"Kubernetes": "scheduling.k8s.io/v1beta1"},
            id="the-newest-that-it-knows",
        ),
        pytest.param(("scheduling.k8s.io/v2",), {}, id="a-version-that-it-does-not-know"),
        pytest.param(
            ("scheduling.x-k8s.io/v1alpha1", "scheduling.volcano.sh/v1beta1"),
            {"Coscheduling": "scheduling.x-k8s.io/v1alpha1", "Volcano": "scheduling.volcano.sh/v1beta1"},
            id="two",
        ),
    ],
)
async def test_versions_are_found_out(apis: tuple[str, ...], served: dict[str, str]) -> None:
    """The API server says which PodGroups it has; the newest version that the operator knows is taken."""
    async with cluster(*apis) as (_fake, gangs):
        await gangs.find()
        assert gangs.served == served
        assert [resource.api_version for resource in gangs.watched()] == list(served.values())


async def test_a_group_of_the_api_without_groups_of_pods_is_none() -> None:
    """scheduling.k8s.io is served everywhere, with classes of priority."""
    async with cluster() as (fake, gangs):
        workloads = Kind("scheduling.k8s.io", "v1alpha2", "Workload", "workloads")
        fake.store.catalogue = Catalogue((*OTHERS, workloads))
        await gangs.find()
        assert gangs.served == {}


async def test_groups_are_read_once() -> None:
    """And again when a watch tells of one; a job without an attempt, or without gang schedulers, reads nothing."""
    async with cluster("scheduling.k8s.io/v1alpha2") as (fake, gangs):
        await gangs.observe(JOB, ReconcileMemory())
        assert [call.plural for call in fake.calls] == []
        await gangs.find()
        asked = len(fake.calls)
        await gangs.observe({**JOB, "status": {}}, ReconcileMemory())
        assert len(fake.calls) == asked
        memory = ReconcileMemory()
        for _ in range(3):
            assert (await gangs.observe(JOB, memory)).groups == ()
        assert len(fake.calls) == asked + 1
        memory.outdate("PodGroup")
        await gangs.observe(JOB, memory)
        assert len(fake.calls) == asked + 2
