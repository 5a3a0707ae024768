"""Faults between operator and API server: the job ends as it does without them."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.cluster import fake_cluster
from support.fakeapi import FakeApi
from support.fakeapi.resources import Catalogue, Kind
from support.fakeapi.server import Call
from support.jobs import state
from support.kubelet import Kubelet, ScriptedRuntime
from support.operating import running_operator
from support.rendering import render
from support.scenario import Clock, Scenario, open_scenario, running_job

from ringtrain_operator.cluster.api.client import ApiClient
from ringtrain_operator.cluster.api.connection import ApiConnection
from ringtrain_operator.cluster.api.resources import EVENTS, PODS
from ringtrain_operator.cluster.versions import ResourceVersions


async def finish(s: Scenario) -> dict[str, Any]:
    """Let the job run to its end; every pod was made once, and there is no storm of events."""
    await s.until_running()
    s.succeed()
    done = await s.until_state("Succeeded", "Failed")
    assert state(done) == "Succeeded", done["status"]
    assert done["status"]["attempt"] == 1
    made = [c.obj["metadata"]["name"] for c in s.cluster.fake.store.additions("pods")]
    assert sorted(made) == sorted(s.pod_names(2))
    assert len(await s.cluster.api.select(EVENTS, s.namespace)) <= 4
    return done


@dataclass(frozen=True)
class ShyOfGangs(Catalogue):
    """Catalogue of the served APIs in which the first 10 requests for the PodGroup API fail."""

    failures: Iterator[int] = field(default_factory=lambda: iter(range(10)))

    def of_group(self, group: str, version: str) -> list[Kind]:
        if group == "scheduling.k8s.io" and next(self.failures, None) is not None:
            raise RuntimeError("by the test")
        return super().of_group(group, version)


async def test_no_job_starts_before_it_is_known_who_places_gangs(tmp_path: Path) -> None:
    """An operator that starts while the API server fails asks again: else jobs would be placed pod by pod."""
    async with fake_cluster(render("gangs.kubernetes=true")) as c:
        c.fake.store.catalogue = ShyOfGangs()
        namespace, runtime, clock = await c.new_namespace(), ScriptedRuntime(), Clock()
        async with Kubelet(c.api, runtime, tmp_path, namespace=namespace) as kubelet:
            s = Scenario(c, namespace, runtime, kubelet, None, clock)
            await s.submit()
            async with running_operator(c.operator_connection, clock, gangs={"Kubernetes": ""}):
                await s.until_running()
                pod = await c.api.get(PODS, namespace, "digits-launcher")
                assert pod["spec"]["schedulingGroup"]["podGroupName"].startswith("digits-")


@pytest.mark.parametrize(
    ("method", "plural", "code", "options"),
    [
        pytest.param("POST", "pods", 500, {"times": 6}, id="500-on-pods"),
        pytest.param("POST", "pods", 0, {"times": 2, "when": "after"}, id="answer-lost-on-pods"),
        pytest.param("POST", "secrets", 503, {"times": 2}, id="503-on-the-secret"),
        pytest.param("POST", "secrets", 0, {"when": "after"}, id="answer-lost-on-the-secret"),
        pytest.param("POST", "services", 429, {"times": 2, "retry_after_s": 0}, id="429-on-the-service"),
        pytest.param("PATCH", "distributedtrainingjobs/status", 409, {"times": 3}, id="409-on-status"),
        pytest.param("PATCH", "distributedtrainingjobs/status", 0, {"when": "after"}, id="status-answer-lost"),
        pytest.param("GET", "distributedtrainingjobs", 504, {"times": 3}, id="504-on-reading"),
        pytest.param("GET", "pods", 0, {"times": 5}, id="connection-dropped-on-listing"),
        pytest.param("POST", "events", 500, {"times": 50}, id="events-refused"),
    ],
)
async def test_a_fault_of_the_api_changes_nothing(
    tmp_path: Path, method: str, plural: str, code: int, options: dict[str, Any]
) -> None:
    """The request is tried again, or the next look makes good for it."""
    async with open_scenario(fake_cluster, tmp_path) as s:
        fault = s.cluster.fake.faults.add(method, plural, code, **options)
        await s.submit()
        await finish(s)
        assert fault.fired


async def test_retry_after_is_respected(tmp_path: Path) -> None:
    """After a 429 with Retry-After no request of that kind comes earlier."""
    async with open_scenario(fake_cluster, tmp_path) as s:
        fault = s.cluster.fake.faults.add("POST", "services", 429, retry_after_s=1)
        at: list[float] = []

        def note(call: Call, when: str) -> None:
            if (call.method, call.plural, when) == ("POST", "services", "before"):
                at.append(asyncio.get_running_loop().time())

        s.cluster.fake.on_call = note
        await s.submit()
        await finish(s)
        assert fault.fired == 1
        assert at[1] - at[0] >= 1.0


async def test_dropped_watches_and_lost_history_are_made_good(tmp_path: Path) -> None:
    """Every write of anybody cuts all watches and the history behind them; nothing is missed."""
    async with open_scenario(fake_cluster, tmp_path) as s:
        fake = s.cluster.fake
        assert fake is not None
        cut = 0

        def forget(call: Call, when: str) -> None:
            nonlocal cut
            if call.is_write and when == "after":
                cut += 1
                fake.store.compact()
                fake.drop_watches()

        fake.on_call = forget
        await s.submit()
        await finish(s)
        assert cut > 10


async def test_a_quorum_read_has_no_floor() -> None:
    """A quorum read has no minimum version: a former process may have written after the one recorded here."""
    async with FakeApi() as fake, ApiClient(ApiConnection(fake.url)) as api:
        versions = ResourceVersions(api)
        versions.record_pod_version("1000000000")  # a list that had this for a floor would be refused, and come again
        assert await versions.list_pods("default", "", quorum=True) == []
        assert len(fake.calls) == 1


async def test_an_outage_is_survived(tmp_path: Path) -> None:
    """For a while the API server answers the operator not at all; afterwards it goes on where it was."""
    async with running_job(fake_cluster, tmp_path) as s:
        outage = asyncio.create_task(s.cluster.fake.outage("ringtrain-operator", for_s=2.0))
        s.succeed()
        await outage
        done = await s.until_state("Succeeded", "Failed")
        assert (state(done), done["status"]["attempt"]) == ("Succeeded", 1)


@pytest.mark.parametrize("skew_s", [-300, 300], ids=["clock-behind", "clock-ahead"])
async def test_a_wrong_clock_does_no_harm(tmp_path: Path, skew_s: int) -> None:
    """The operator's clock is five minutes off the API server's."""
    async with open_scenario(fake_cluster, tmp_path) as s:
        s.clock.ahead = timedelta(seconds=skew_s)
        await s.submit(runPolicy={"activeDeadlineSeconds": 3600, "ttlSecondsAfterFinished": 3600})
        await finish(s)


async def test_a_refusal_is_said_in_the_apis_own_words(tmp_path: Path) -> None:
    """A pod that the quota refuses is in the job's condition, is tried again without haste, and the job goes on. For
    one that is invalid see test_refused.py."""
    message = "exceeded quota: few, requested: pods=1, used: pods=1, limited: pods=1"
    async with open_scenario(fake_cluster, tmp_path) as s:
        fault = s.cluster.fake.faults.add("POST", "pods", 403, times=9, message=message)
        await s.submit()
        running = await s.until_condition("Running", "False", message)
        assert message in running["message"]
        await finish(s)
        assert fault.fired == 9


async def test_an_operator_that_has_nothing_to_do_asks_nothing(tmp_path: Path) -> None:
    """Once a job has ended, no request follows but those of its open watches."""
    async with open_scenario(fake_cluster, tmp_path) as s:
        fake = s.cluster.fake
        assert fake is not None
        await s.submit()
        await finish(s)
        await s.cluster.until_quiet()
        assert await fake.calls_within(1.0, "ringtrain-operator") == []
