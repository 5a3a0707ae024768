"""One API server under test, fake or real, and helpers that wait for its objects."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ringtrain_operator.cluster.api.client import ApiClient
from ringtrain_operator.cluster.api.connection import ApiConnection
from ringtrain_operator.cluster.api.errors import NotFound
from ringtrain_operator.cluster.api.resources import SERVICE_ACCOUNTS, ApiResource
from support.apiserver import ControlPlane
from support.fakeapi import FakeApi
from support.installation import beyond_rights, manifests
from support.objects import NAMESPACES, kubeconfig

Json = dict[str, Any]
WAIT_S = 180.0  # generous: on an idle machine each wait takes well under a second


@dataclass(frozen=True)
class Cluster:
    """An API server as its admin and as the operator. `fake` or `plane` says which one it is."""

    connection: ApiConnection
    api: ApiClient
    operator_connection: ApiConnection
    fake: FakeApi | None = None
    plane: ControlPlane | None = None

    def kubeconfig(self, folder: Path) -> Path:
        """Return a kubeconfig of the admin; for the fake one it is written to `folder`."""
        if self.plane is not None:
            return self.plane.kubeconfig()
        path = folder / "kubeconfig"
        path.write_text(yaml.safe_dump(kubeconfig({"server": self.connection.server}, {})))
        return path

    async def new_namespace(self) -> str:
        """Create a namespace for a test, with the default ServiceAccount that pods need."""
        name = f"test-{secrets.token_hex(4)}"
        await self.api.create(NAMESPACES, None, {"metadata": {"name": name}})
        if self.plane is not None:
            await self.until_exists(SERVICE_ACCOUNTS, name, "default")
        return name

    async def pause(self) -> None:
        """Sleep between two reads."""
        await asyncio.sleep(0.02)

    async def until_quiet(self) -> None:
        """Wait until no request has changed the fake one for a while, longer than the time between two writes."""
        assert self.fake is not None
        seen = -1
        while seen != self.fake.store.version:
            seen = self.fake.store.version
            await asyncio.sleep(0.15)

    async def until_exists(self, resource: ApiResource, namespace: str | None, name: str) -> Json:
        """Return the object as soon as it exists."""
        return await self.until(resource, namespace, name, lambda obj: obj is not None)

    async def until_gone(self, resource: ApiResource, namespace: str | None, name: str) -> None:
        """Wait until the object is deleted."""
        await self.until(resource, namespace, name, lambda obj: obj is None)

    async def until(
        self,
        resource: ApiResource,
        namespace: str | None,
        name: str,
        condition: Callable[[Json | None], Any],
        within_s: float = WAIT_S,
    ) -> Json:
        """Return the object once `condition` is true for it (None: absent). Raises TimeoutError with its last state."""
        seen: Json | None = None
        try:
            async with asyncio.timeout(within_s):
                while True:
                    try:
                        seen = await self.api.get(resource, namespace, name)
                    except NotFound:
                        seen = None
                    if condition(seen):
                        return seen or {}
                    await asyncio.sleep(0.02)
        except TimeoutError:
            if seen is not None:
                seen["metadata"].pop("managedFields", None)  # long and not relevant
            raise TimeoutError(f"{resource.kind} {namespace}/{name} did not get there: {seen}") from None


OpenCluster = Callable[[], AbstractAsyncContextManager[Cluster]]


@asynccontextmanager
async def fake_cluster(rights: list[Json] | None = None) -> AsyncIterator[Cluster]:
    """The fake API server, fresh. It has no roles: at the end, what the operator asked is held against them.

    `rights`: manifests with the roles; None: those that are installed without Helm.
    """
    async with FakeApi() as fake, ApiClient(ApiConnection(fake.url), user_agent="test") as api:
        yield Cluster(ApiConnection(fake.url), api, ApiConnection(fake.url), fake=fake)
        assert beyond_rights(fake.calls, rights or manifests()) == set(), "the roles do not allow it"


@asynccontextmanager
async def real_cluster(plane: ControlPlane) -> AsyncIterator[Cluster]:
    """The running control plane, shared by the tests of a session."""
    async with ApiClient(plane.connection(), user_agent="test") as api:
        yield Cluster(plane.connection(), api, plane.connection(plane.operator_token), plane=plane)


@asynccontextmanager
async def namespace_of(opened: AbstractAsyncContextManager[Cluster]) -> AsyncIterator[tuple[Cluster, str]]:
    """A cluster, and a namespace for the test in it."""
    async with opened as cluster:
        yield cluster, await cluster.new_namespace()
