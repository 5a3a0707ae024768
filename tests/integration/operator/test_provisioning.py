"""Nodes that a cluster autoscaler is asked for: on an API server with its CRD, a stand-in plays the autoscaler."""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.apiserver import ControlPlane, why_unavailable
from support.autoscaler import CRD, REQUESTS, provisioning, say
from support.cluster import WAIT_S, fake_cluster, real_cluster
from support.installation import ROOT, install_rights
from support.kubelet import Kubelet, ScriptedRuntime
from support.operating import cut_off, running_operator, start_operator
from support.rendering import render
from support.scenario import Clock, Scenario, open_scenario

from ringtrain_client.jobs.causes import explain_job
from ringtrain_operator.cluster.api.client import ApiClient
from ringtrain_operator.cluster.api.resources import JOBS, POD_TEMPLATES, PODS
from ringtrain_operator.placement.provisioning import ASK_AGAIN_S
from ringtrain_operator.plan.objects import LAUNCHER_ENDS_S

Json = dict[str, Any]
ASKS = {"scheduling": {"provisioning": {"className": "check-capacity.autoscaling.x-k8s.io"}}}
RIGHTS = "provisioning.enabled=true"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One that has the autoscaler's kind; skips with the way to get its binaries."""
    if reason := why_unavailable():
        pytest.skip(reason)
    ours = yaml.safe_load_all((ROOT / "manifests" / "crd.yaml").read_text())
    found = ControlPlane.start(tmp_path_factory.mktemp("capacity-plane"), (*ours, CRD))

    async def allow() -> str:
        async with ApiClient(found.connection()) as api:
            return await install_rights(api, render(RIGHTS))

    try:
        found.operator_token = asyncio.run(allow())
        yield found
    finally:
        found.stop()


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.apiserver)])
def server(request: pytest.FixtureRequest) -> Any:
    """Opens the fake API server, or the real one with the autoscaler's CRD."""
    if request.param == "fake":
        return lambda: fake_cluster(render(RIGHTS))
    plane = request.getfixturevalue("plane")
    return lambda: real_cluster(plane)


def scenario(server: Any, folder: Path) -> AbstractAsyncContextManager[Scenario]:
    """Nodes, and an operator that may ask for more."""
    return open_scenario(server, folder, {"provisioning": True})


async def asked(s: Scenario) -> list[str]:
    """Names of what asks for nodes, less the job's: attempts, and pod sets."""
    found = [
        *await s.cluster.api.select(REQUESTS, s.namespace),
        *await s.cluster.api.select(POD_TEMPLATES, s.namespace),
    ]
    return sorted(obj["metadata"]["name"].split("-", 2)[2] for obj in found)


async def until_asked(s: Scenario, attempt: int | None) -> None:
    """Return when there is this attempt's request with its templates, and nothing else; None: nothing."""
    wanted = [] if attempt is None else [f"{attempt}", f"{attempt}-launcher", f"{attempt}-workers"]
    async with asyncio.timeout(WAIT_S):
        while await asked(s) != wanted:
            await s.cluster.pause()


async def only_request(s: Scenario) -> Json:
    """The one request that there is."""
    (found,) = await s.cluster.api.select(REQUESTS, s.namespace)
    return found


async def test_pods_wait_for_nodes_and_what_failed_is_asked_again(server: Any, tmp_path: Path) -> None:
    """The condition and `dtj why` have the autoscaler's words; the pods name the request that got nodes."""
    async with scenario(server, tmp_path) as s:
        await s.submit(**ASKS)
        await until_asked(s, 1)
        first = await only_request(s)
        assert [one["count"] for one in first["spec"]["podSets"]] == [1, 2]
        await say(s.cluster.api, first, "Failed", "CapacityIsNotFound", "no nodes of that kind")
        told = await s.until_condition("Running", "False", "no nodes of that kind")
        assert told["reason"] == "NoCapacity"
        assert told["message"] in "\n".join(explain_job(await s.until_state("Queued"), [], []))
        assert await s.pods() == []
        s.skip(ASK_AGAIN_S + 1)
        async with asyncio.timeout(WAIT_S):
            while not (found := await s.cluster.api.select(REQUESTS, s.namespace)) or (
                found[0]["metadata"]["uid"] == first["metadata"]["uid"]
            ):
                await s.cluster.pause()
        await say(s.cluster.api, found[0], "Provisioned", "CapacityIsFound")
        await s.until_running()
        pod = await s.cluster.api.get(PODS, s.namespace, "digits-worker-1")
        name = pod["metadata"]["annotations"]["autoscaling.x-k8s.io/consume-provisioning-request"]
        assert name == first["metadata"]["name"]
        status = (await s.job())["status"]
        assert (status["attempt"], status["restarts"], status["disruptions"]) == (1, 0, 0)


async def test_nothing_is_left_that_asks_for_nodes(server: Any, tmp_path: Path) -> None:
    """Restarted, suspended, resumed, finished: one request while there are to be pods, and then none."""
    async with scenario(server, tmp_path) as s, provisioning(s.cluster.api, s.namespace):
        await s.submit(**ASKS)
        await s.until_running()
        await until_asked(s, 1)
        s.fail(code=3)
        await s.until(lambda j: j["status"].get("attempt") == 2)
        await s.until_running(attempt=2, after_s=30)
        await until_asked(s, 2)
        await s.change({"runPolicy": {"suspend": True}})
        await s.until_state("Suspended")
        s.skip(LAUNCHER_ENDS_S)
        await s.until_pods(0)
        await until_asked(s, None)
        await s.change({"runPolicy": {"suspend": False}})
        await s.until_running(attempt=3)
        await until_asked(s, 3)
        s.succeed(attempt=3)
        await s.until_state("Succeeded")
        await until_asked(s, None)


@pytest.mark.apiserver
async def test_the_end_is_the_same_wherever_the_operator_died(plane: ControlPlane, tmp_path: Path) -> None:
    """The operator dies at its nth write; the next one continues, and nothing is left. `test_killed` has the same on
    the fake server."""
    for at in range(1, 16, 2):
        async with real_cluster(plane) as cluster:
            namespace, runtime, clock = await cluster.new_namespace(), ScriptedRuntime(), Clock()
            folder = tmp_path / str(at)
            async with (
                Kubelet(cluster.api, runtime, folder, namespace=namespace) as kubelet,
                provisioning(cluster.api, namespace),
            ):
                s = Scenario(cluster, namespace, runtime, kubelet, None, clock)
                died = asyncio.create_task(_operator_that_dies(s, at))
                await s.submit(**ASKS)
                await died
                async with running_operator(
                    cluster.operator_connection, clock, namespaces=(namespace,), provisioning=True
                ):
                    await s.until_running()
                    await until_asked(s, 1)
                    await s.change({"runPolicy": {"suspend": True}})
                    await s.until_state("Suspended")
                    await s.pass_by(LAUNCHER_ENDS_S)
                    await s.until_pods(0)
                    await until_asked(s, None)
                    await s.change({"runPolicy": {"suspend": False}})
                    await s.until_running(attempt=2)
                    s.succeed(attempt=2)
                    await s.until_state("Succeeded")
                    await until_asked(s, None)


async def _operator_that_dies(s: Scenario, at: int) -> None:
    """Run an operator until it has asked to write `at` times, or has nothing more to write; then it is cut off."""
    connection, asks, struck = s.cluster.operator_connection, 0, asyncio.Event()
    operator, running = await start_operator(connection, s.clock, namespaces=(s.namespace,), provisioning=True)

    def may_write() -> bool:
        nonlocal asks
        asks += 1
        if asks >= at:
            struck.set()
        return asks < at

    operator.api.fence(may_write)
    writes_end = asyncio.create_task(s.until_running())  # a life has fewer writes than `at`, perhaps
    death = asyncio.create_task(struck.wait())
    await asyncio.wait((writes_end, death), return_when=asyncio.FIRST_COMPLETED)
    for task in (writes_end, death):
        task.cancel()
    await asyncio.gather(writes_end, death, return_exceptions=True)
    await cut_off(operator, running)


async def test_a_deleted_job_asks_for_nothing(server: Any, tmp_path: Path) -> None:
    """While it waits for nodes: request and templates go with it."""
    async with scenario(server, tmp_path) as s:
        await s.submit(**ASKS)
        await until_asked(s, 1)
        await s.cluster.api.delete(JOBS, s.namespace, s.name)
        await until_asked(s, None)
