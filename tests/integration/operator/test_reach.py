"""Reaching the API server: CAs of the kind that clusters have, and readiness that rests on answers."""

import asyncio
import json
import ssl
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from support.certificates import ClusterAuthority
from support.fakeapi.server import FakeApi
from support.objects import kubeconfig
from support.operating import running_operator, start_operator, stop_operator
from support.ports import free_ports

from ringtrain_operator.cluster.api.client import ApiClient
from ringtrain_operator.cluster.api.connection import ApiConnection
from ringtrain_operator.cluster.api.errors import Unreachable
from ringtrain_operator.cluster.api.transport import ApiLimits
from ringtrain_operator.cluster.health import ReachTimes
from ringtrain_operator.cluster.operator import Operator

QUICK = ReachTimes(every_s=0.05, deadline_s=1.0, lost_after_s=0.2)


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contexts as Python makes them from 3.13 on."""
    create = ssl.create_default_context

    def create_strict(*args: object, **options: object) -> ssl.SSLContext:
        context = create(*args, **options)  # type: ignore[arg-type]
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", create_strict)


def service_account(folder: Path, url: str, authority: ClusterAuthority) -> ApiConnection:
    """The connection of a pod whose account has the CA of `authority`."""
    folder.mkdir()
    (folder / "ca.crt").write_bytes(authority.pem)
    (folder / "namespace").write_text("default")
    (folder / "token").write_text("token")
    host, port = url.removeprefix("https://").rsplit(":", 1)
    return ApiConnection.of_service_account(folder, host, port)


def of_kubeconfig(folder: Path, url: str, authority: ClusterAuthority) -> ApiConnection:
    """The connection of a kubeconfig that names the CA's file."""
    folder.mkdir()
    (folder / "ca.crt").write_bytes(authority.pem)
    cluster = {"server": url, "certificate-authority": str(folder / "ca.crt")}
    (folder / "config").write_text(json.dumps(kubeconfig(cluster, {"token": "t"})))
    return ApiConnection.from_env({}, str(folder / "config"))


async def version(connection: ApiConnection) -> str:
    """Return the major version that the server at the other end reports."""
    async with ApiClient(connection, limits=ApiLimits(attempts=1)) as api:
        return str((await api.raw_get("/version"))["major"])


@pytest.mark.parametrize("key_usage", [True, False], ids=["with-key-usage", "without-key-usage"])
@pytest.mark.usefixtures("strict")
async def test_a_clusters_own_ca(tmp_path: Path, key_usage: bool) -> None:
    """Clusters' CAs need not have the key usage extension; who is there is verified as before, by CA and name."""
    authority, stranger = ClusterAuthority(key_usage=key_usage), ClusterAuthority(key_usage=key_usage)
    async with FakeApi(tls=authority.server_context(tmp_path, "127.0.0.1")) as fake:
        strictly = ssl.create_default_context(cadata=authority.pem.decode())
        if not key_usage:  # what the operator must not do
            with pytest.raises(Unreachable, match="key usage"):
                await version(ApiConnection(fake.url, tls=strictly))
        for number, connect in enumerate((service_account, of_kubeconfig)):
            connection = connect(tmp_path / f"own-{number}", fake.url, authority)
            assert await version(connection) == "1"
            elsewhere = fake.url.replace("127.0.0.1", "localhost")
            with pytest.raises(Unreachable, match=r"certificate verify failed: (Hostname|IP address) mismatch"):
                await version(replace(connection, server=elsewhere))
            with pytest.raises(Unreachable, match="certificate verify failed"):
                await version(connect(tmp_path / f"strange-{number}", fake.url, stranger))


@pytest.mark.usefixtures("strict")
async def test_the_watches_reach_it_too(tmp_path: Path) -> None:
    """kopf's client and ours are one about whom they trust."""
    authority = ClusterAuthority(key_usage=False)
    async with FakeApi(tls=authority.server_context(tmp_path, "127.0.0.1")) as fake:
        connection = service_account(tmp_path / "account", fake.url, authority)
        async with running_operator(connection):
            while not [call for call in fake.calls if call.method == "WATCH"]:
                await asyncio.sleep(0.02)


async def ready(operator: Operator) -> tuple[int, str]:
    """Return status and body of the answer to /readyz."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{operator.port}/readyz") as answer,
    ):
        return answer.status, await answer.text()


async def until_ready_says(operator: Operator, status: int, words: str) -> None:
    """Return when /readyz answers so; the test's deadline is the bound."""
    while (found := await ready(operator))[0] != status or words not in found[1]:
        await asyncio.sleep(0.02)


async def test_ready_only_while_the_api_server_answers() -> None:
    """No answer for some seconds, and the operator is not ready any more; alive it is."""
    async with FakeApi() as fake:
        operator, running = await start_operator(ApiConnection(fake.url), reach_times=QUICK)
        await until_ready_says(operator, 200, "ok")
    await until_ready_says(operator, 503, "the API server has not answered for")
    await stop_operator(operator, running)


async def test_a_standby_that_never_had_an_answer_is_not_ready() -> None:
    """Waiting for the lease is no excuse: a replica that can't reach the API server could not take over."""
    (port,) = free_ports(1)
    operator, running = await start_operator(
        ApiConnection(f"http://127.0.0.1:{port}"), reach_times=QUICK, leader_election=True, wait=False
    )
    while not operator.port:
        await asyncio.sleep(0.01)
    await until_ready_says(operator, 503, "the API server has not answered yet: GET /version: no answer")
    await stop_operator(operator, running)
