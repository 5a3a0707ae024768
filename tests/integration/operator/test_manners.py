"""The operator's own manners: probes, metrics, its log, its end, and events that are not repeated."""

import asyncio
import json
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from support.cluster import OpenCluster, fake_cluster, namespace_of
from support.jobs import job
from support.operating import running_operator, start_operator, stop_operator
from support.scenario import open_scenario

from ringtrain_operator.cluster.api.resources import EVENTS, JOBS, LEASES
from ringtrain_operator.cluster.operator import Operator


async def ask(operator: Operator, path: str) -> tuple[int, str]:
    """Return status and body of the answer to `path` on the operator's own port."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{operator.port}{path}") as answer,
    ):
        return answer.status, await answer.text()


async def until_answers(operator: Operator, path: str, status: int) -> str:
    """Return the operator's answer once its status is `status`; the test's deadline is the bound."""
    while True:
        found, answer = await ask(operator, path)
        if found == status:
            return answer
        await asyncio.sleep(0.02)


async def test_the_metrics_tell_what_happened(tmp_path: Path) -> None:
    """Reconciles and their durations, the queue, jobs by state, time to running, restarts."""
    async with open_scenario(fake_cluster, tmp_path) as s:
        assert s.operator is not None
        await s.submit()
        await s.until_running()
        async with s.launcher_says():
            await s.until_state("Running")
        s.fail(code=3)
        await s.until(lambda j: j["status"]["restarts"] == 1)
        await s.pass_by(30)
        await s.until_running(attempt=2)
        s.succeed(attempt=2)
        await s.until_state("Succeeded")
        await s.cluster.until_quiet()
        _, text = await ask(s.operator, "/metrics")
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["ringtrain_reconciles_total", "ok"] >= 8
    assert samples["ringtrain_reconcile_duration_seconds_count",] >= 8
    assert samples["ringtrain_queue_depth",] == 0
    assert samples["ringtrain_jobs", "Succeeded"] == 1
    assert samples["ringtrain_jobs", "Running"] == 0
    assert samples["ringtrain_job_time_to_running_seconds_count",] == 1
    assert samples["ringtrain_job_restarts_total", "true"] == 1
    assert samples["ringtrain_job_failures_total", "RankFailed"] == 1
    assert samples["process_resident_memory_bytes",] > 0
    assert any(name == "ringtrain_operator_build_info" for name, *_ in samples)
    assert samples["ringtrain_leader",] == 0  # there is no election here


async def test_it_is_ready_when_it_watches() -> None:
    """Not before its kind is served: the CRD may come after it."""
    async with fake_cluster() as c:
        assert c.fake is not None
        fault = c.fake.faults.add("GET", "distributedtrainingjobs", 404)
        operator, running = await start_operator(c.connection, wait=False)
        while not fault.fired:
            await c.pause()
        assert await ask(operator, "/readyz") == (503, "not watching yet")
        assert await until_answers(operator, "/readyz", 200) == "ok"
        assert await ask(operator, "/healthz") == (200, "ok")
        await stop_operator(operator, running)


async def test_a_reconcile_that_does_not_end_is_no_life() -> None:
    """An answer that does not come makes /healthz fail, until it comes."""
    async with fake_cluster() as c:
        assert c.fake is not None
        ns, answer = await c.new_namespace(), asyncio.Event()
        fault = c.fake.faults.add("POST", "services", 0, hold=answer)
        async with running_operator(c.connection, namespaces=(ns,), stuck_after_s=0.5) as operator:
            assert await ask(operator, "/healthz") == (200, "ok")
            await c.api.create(JOBS, ns, job())
            assert "a reconcile has been running" in await until_answers(operator, "/healthz", 503)
            assert fault.fired
            answer.set()
            await until_answers(operator, "/healthz", 200)


async def test_watches_that_stand_still_are_no_life() -> None:
    """While the watch loop hangs (here: as it reads its token), /healthz fails although all else works."""
    readable = threading.Event()
    readable.set()

    def headers() -> dict[str, str]:
        if threading.current_thread() is not threading.main_thread():
            readable.wait()
        return {}

    async with fake_cluster() as c:
        assert c.fake is not None
        ns = await c.new_namespace()
        connection = replace(c.connection, headers=headers)
        async with running_operator(connection, namespaces=(ns,), stuck_after_s=1.0) as operator:
            try:
                await until_answers(operator, "/healthz", 200)
                readable.clear()
                c.fake.drop_watches()
                assert "the watch loop has been blocked" in await until_answers(operator, "/healthz", 503)
            finally:
                readable.set()
            await until_answers(operator, "/healthz", 200)


async def test_it_ends_when_it_is_asked_to(open_cluster: OpenCluster, tmp_path: Path) -> None:
    """SIGTERM: exit code 0, the lease is handed back, and every line of its log is an object."""
    async with namespace_of(open_cluster()) as (c, ns):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "ringtrain_operator"),
            f"--kubeconfig={c.kubeconfig(tmp_path)}",
            f"--namespace={ns}",
            f"--lease-namespace={ns}",
            "--listen=127.0.0.1:0",
            stderr=asyncio.subprocess.PIPE,
        )
        await c.until(LEASES, ns, "ringtrain-operator", lambda found: found and found["spec"].get("holderIdentity"))
        process.send_signal(signal.SIGTERM)
        _, log = await process.communicate()
        assert process.returncode == 0, log.decode()
        assert (await c.api.get(LEASES, ns, "ringtrain-operator"))["spec"]["holderIdentity"] == ""
    lines = [json.loads(line) for line in log.splitlines()]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    assert lines[-1]["message"] == "stopped"


async def test_what_is_told_again_is_counted(open_cluster: OpenCluster, tmp_path: Path) -> None:
    """A job that is suspended twice has one event that says so, with a count of two."""
    async with open_scenario(open_cluster, tmp_path) as s:
        await s.submit(runPolicy={"suspend": True})
        await s.until_state("Suspended")
        await s.change({"runPolicy": {"suspend": False}})
        await s.until_running()
        await s.change({"runPolicy": {"suspend": True}})
        await s.until_state("Suspended")
        counts: list[int] = []
        while counts != [2]:  # events follow the status they speak of
            events = await s.cluster.api.select(EVENTS, s.namespace)
            counts = [e["count"] for e in events if e["reason"] == "Suspended"]
            await s.cluster.pause()
