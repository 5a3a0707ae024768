"""API requests of a reconciliation: nothing is read or written without a cause."""

import functools

import pytest
from support.cluster import fake_cluster
from support.jobs import job, state
from support.operating import running_operator
from support.rendering import render

from ringtrain_operator.cluster import versions
from ringtrain_operator.cluster.api.resources import JOBS, PODS
from ringtrain_operator.cluster.pods import KnownPods


@pytest.mark.parametrize("large", [1, 64], ids=["large", "small"])
async def test_a_pods_change_costs_one_look(large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One read of the job, one list of its pods (a watch tells of those of a large job), one status: its own
    writing makes an operator look no more."""
    monkeypatch.setattr(versions, "KnownPods", functools.partial(KnownPods, large=large))
    async with fake_cluster() as c, running_operator(c.operator_connection):
        assert c.fake is not None
        ns = await c.new_namespace()
        await c.api.create(JOBS, ns, job("digits", workers=2))
        await c.until(JOBS, ns, "digits", lambda j: j and (j.get("status") or {}).get("replicas") == 2)
        await c.until_quiet()
        container = {"name": "train", "ready": True, "state": {"running": {}}}
        status = {"status": {"phase": "Running", "containerStatuses": [container]}}
        before = len(c.fake.calls)
        await c.api.patch(PODS, ns, "digits-worker-0", status, subresource="status")
        seen = await c.until(JOBS, ns, "digits", lambda j: j and j["status"]["workers"] == "1/2")
        await c.until_quiet()
        assert state(seen) == "Pending"
        mine = [call for call in c.fake.calls[before:] if call.agent == "ringtrain-operator"]
        assert [(call.method, call.plural) for call in mine] == [
            ("GET", "distributedtrainingjobs"),
            *([] if large == 1 else [("GET", "pods")]),
            ("PATCH", "distributedtrainingjobs"),
        ]


async def test_a_finished_job_costs_no_reads_of_what_it_has_besides_pods() -> None:
    """Nothing is created for it any more, so whose its Service is does not matter."""
    async with fake_cluster() as c:
        assert c.fake is not None
        ns = await c.new_namespace()
        await c.api.create(JOBS, ns, job("digits"))
        fields = {"reason": "AllRanksSucceeded", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        succeeded = {"type": "Succeeded", "status": "True", **fields}
        status = {"state": "Succeeded", "attempt": 1, "conditions": [succeeded]}
        await c.api.patch(JOBS, ns, "digits", {"status": status}, subresource="status")
        async with running_operator(c.operator_connection):
            await c.until(JOBS, ns, "digits", lambda j: j and j["status"].get("workers") == "-")
            await c.until_quiet()
        mine = {(call.method, call.plural) for call in c.fake.calls if call.agent == "ringtrain-operator"}
        assert ("GET", "pods") in mine
        assert not {plural for _, plural in mine} & {"services", "serviceaccounts", "networkpolicies"}


async def test_jobs_that_wait_in_a_queue_cost_nothing_while_others_come_and_go() -> None:
    """Not one of them is looked at while another job is made, gets its pods and is deleted."""
    async with fake_cluster(render("kueue.enabled=true")) as c:
        ns, names = await c.new_namespace(), [f"waits-{number}" for number in range(20)]
        async with running_operator(c.operator_connection, kueue=True):
            for name in names:
                await c.api.create(JOBS, ns, job(name, scheduling={"queue": "research"}))
            for name in names:
                await c.until(JOBS, ns, name, lambda j: state(j or {}) == "Queued")
            await c.until_quiet()
            before = len(c.fake.calls)
            await c.api.create(JOBS, ns, job("digits"))
            await c.until_exists(PODS, ns, "digits-launcher")
            await c.api.delete(JOBS, ns, "digits")
            await c.until_gone(PODS, ns, "digits-launcher")
            await c.until_quiet()
        mine = [call for call in c.fake.calls[before:] if call.agent == "ringtrain-operator"]
        looked_at = {call.name for call in mine if call.method == "GET" and call.plural == JOBS.plural}
        assert looked_at == {"digits"}  # whatever is asked or written about a job begins with reading it
