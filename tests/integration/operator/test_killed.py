"""The operator killed at every write of a job's life: the job ends the same, no pod twice, none orphaned.

A write is carried out, and its answer is lost. The next operator finds the same as after a kill before the next write.
"""

import asyncio
import functools
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.autoscaler import REQUESTS, provisioning
from support.cluster import WAIT_S, fake_cluster
from support.fakeapi.server import Call
from support.jobs import condition, state, workers_with_devices
from support.kubelet import Kubelet, ScriptedRuntime
from support.operating import cut_off, start_operator
from support.rendering import render
from support.scenario import Clock, Scenario
from support.standin import WORKLOADS, admitting, evict

from ringtrain_operator import contract
from ringtrain_operator.cluster.api.resources import EVENTS, JOBS, POD_TEMPLATES, PODS, pod_groups
from ringtrain_operator.placement.kueue.workload import workload_name
from ringtrain_operator.plan.objects import LAUNCHER_ENDS_S

POD_GROUPS = pod_groups("scheduling.k8s.io/v1alpha2")
# Jobs that are in no queue get a group for each attempt.
GANGS = {"Kubernetes": ""}
MOST_WRITES = 80  # of one life; a test asserts that it is enough
AT_ONCE = 6  # lives that are lived side by side: most of one is waiting

Course = Callable[[Scenario], Awaitable[None]]


async def straight(s: Scenario) -> None:
    """From the job to Succeeded."""
    await s.submit()
    await s.until_running()
    s.succeed()


async def winding(s: Scenario, **spec: Any) -> None:
    """A failure and the gang's restart, a suspension in the middle of that, and at last success."""
    await s.submit(**spec)
    await s.until_running()
    s.fail(code=3)
    await s.until(lambda j: (j.get("status") or {}).get("attempt") == 2)
    await s.pass_by(30)
    await s.until_running(attempt=2)
    await s.change({"runPolicy": {"suspend": True}})
    await s.until_state("Suspended")
    await s.pass_by(LAUNCHER_ENDS_S)  # this launcher does not end by itself
    await s.until_pods(0)
    await s.change({"runPolicy": {"suspend": False}})
    await s.until_running(attempt=3)
    s.succeed(attempt=3)


async def elastic(s: Scenario) -> None:
    """A worker that is lost, two that join and three that leave, all in one attempt."""
    await s.submit(elastic={"maxReplicas": 4})
    await s.until_running()
    async with s.launcher_says(elastic={"formation": 1, "ranks": 2}) as answer:
        await s.until(_sees_all(2))
        await s.cluster.api.delete(PODS, s.namespace, "digits-worker-1")
        await s.until(lambda j: j["status"]["elastic"]["lostWorkers"] == 1)
        await s.until(_sees_all(2))
        await s.change({"worker": {"replicas": 4}})
        await s.until_running(workers=4)
        await s.until(_sees_all(4))
        await s.change({"worker": {"replicas": 1}})
        await s.until_pods(2)
        answer["elastic"]["ranks"] = 1
        await s.until(lambda j: j["status"]["elastic"]["ranks"] == 1)
    s.succeed(workers=1)


async def queued(s: Scenario) -> None:
    """Workers larger than any node: the job gives back what it has, waits without pods, and is made smaller."""
    await s.submit(worker=workers_with_devices(5), scheduling={"gang": "None"})
    await s.until_condition("Running", "False", "Insufficient")
    await s.pass_by(310)
    await s.until_state("Queued")
    await s.until_pods(0)
    await s.change({"runPolicy": {"suspend": True}})
    await s.until_state("Suspended")
    await s.change({"worker": {"devices": None}})
    await s.change({"runPolicy": {"suspend": False}})
    await s.until_running(attempt=3)
    s.succeed(attempt=3)


async def in_kueue(s: Scenario) -> None:
    """Admitted by Kueue, preempted while it runs, admitted again, and at last success."""
    async with admitting(s.cluster.api, s.namespace):
        made = await s.submit(scheduling={"queue": "research"})
        await s.until_running()
        workload = workload_name(s.name, made["metadata"]["uid"], {})
        await evict(s.cluster.api, s.namespace, workload)
        await s.until(lambda j: condition(j, "Queued").get("reason") == "Preempted")
        await s.pass_by(LAUNCHER_ENDS_S)  # this launcher does not end by itself
        await s.until_running(attempt=2)
        s.succeed(attempt=2)
        finished = await s.cluster.until(WORKLOADS, s.namespace, workload, _is_finished)
        assert "admission" in finished["status"]


async def in_gang(s: Scenario) -> None:
    """A group of Kubernetes' own gang scheduling for each of three attempts, and none in the end."""
    await winding(s, scheduling={"gang": "Kubernetes"})
    await s.until_state("Succeeded")
    async with asyncio.timeout(WAIT_S):
        while await s.cluster.api.select(POD_GROUPS, s.namespace):
            await s.cluster.pause()


async def with_nodes_asked_for(s: Scenario) -> None:
    """A ProvisioningRequest for each of three attempts."""
    async with provisioning(s.cluster.api, s.namespace):
        wanted = {"className": "check-capacity.autoscaling.x-k8s.io"}
        await winding(s, scheduling={"gang": "None", "provisioning": wanted})
        await s.until_state("Succeeded")
        await until_nothing_is_asked(s)


async def until_nothing_is_asked(s: Scenario) -> None:
    """Return when nothing asks for nodes."""
    async with asyncio.timeout(WAIT_S):
        while [one for kind in (REQUESTS, POD_TEMPLATES) for one in await s.cluster.api.select(kind, s.namespace)]:
            await s.cluster.pause()


def _is_finished(workload: dict[str, Any] | None) -> bool:
    return workload is not None and condition(workload, "Finished").get("status") == "True"


def _sees_all(workers: int) -> Callable[[dict[str, Any]], bool]:
    """Whether the operator has noted that so many workers' pods are there."""

    def seen(job: dict[str, Any]) -> bool:
        status = job.get("status") or {}
        notes = (status.get("ledger") or {}).get("incarnations") or {}
        return status.get("state") == "Running" and notes.get("present") == [True] * workers

    return seen


@dataclass
class Killer:
    """Ends the operator at its write `at`, which is carried out and gets no answer."""

    at: int
    writes: int = 0
    struck: asyncio.Event = field(default_factory=asyncio.Event)
    dead: bool = False
    victim: Call | None = None

    def __call__(self, call: Call, when: str) -> None:
        if not call.agent.startswith("ringtrain-operator"):
            return
        if self.dead:
            raise ConnectionAbortedError
        if call.is_write and when == "before":
            self.writes += 1
            self.victim = call if self.writes == self.at else self.victim
        if call is self.victim and when == "after":
            self.victim, self.dead = None, True
            self.struck.set()
            raise ConnectionAbortedError


@dataclass(frozen=True)
class Life:
    """Record of a job's life. Pods created, by attempt and name; events, with how often each was emitted."""

    status: dict[str, Any]
    writes: int
    pods_made: list[tuple[str, str]]
    incarnations: list[tuple[str, str, str]]
    events: Counter[tuple[str, str]]
    left_behind: list[str]
    killed: bool


async def live(course: Course, killer: Killer, folder: Path) -> Life:
    """A whole life of a job and its deletion, with the operator killed once on the way and started again."""
    async with fake_cluster(_rights()) as c:
        assert c.fake is not None
        ns, runtime, clock = await c.new_namespace(), ScriptedRuntime(), Clock()
        async with Kubelet(c.api, runtime, folder, namespace=ns) as kubelet:
            c.fake.on_call = killer
            scenario = Scenario(c, ns, runtime, kubelet, None, clock)
            restarting = asyncio.create_task(restart_when_killed(scenario, killer))
            await course(scenario)
            done = await scenario.until(lambda j: state(j) in ("Succeeded", "Failed"))
            await c.until_quiet()
            events: Counter[tuple[str, str]] = Counter()
            for event in await c.api.select(EVENTS, ns):
                events[event["reason"], _without_cause(event)] += event["count"]
            await c.api.delete(JOBS, ns, scenario.name)
            await scenario.until_pods(0)
            await c.until_quiet()
            c.fake.on_call = None
            restarting.cancel()
            await asyncio.gather(restarting, return_exceptions=True)
        pods = [change.obj["metadata"] for change in c.fake.store.additions("pods")]
        return Life(
            done["status"],
            killer.writes,
            sorted(_attempt_and_name(p) for p in pods),
            [(*_attempt_and_name(p), p["labels"].get(contract.LABEL_INCARNATION, "")) for p in pods],
            events,
            c.fake.store.owned_by(done["metadata"]["uid"]),
            killer.struck.is_set(),
        )


@functools.cache
def _rights() -> list[dict[str, Any]]:
    """The chart's, with what Kueue and gangs take."""
    return render("kueue.enabled=true", "gangs.kubernetes=true", "provisioning.enabled=true")


def _without_cause(event: dict[str, Any]) -> str:
    """An event's message, without how many pods wait beside the one that it names: an attempt's first pod is made
    before the others. Of a lost worker its name, and of a complete world nothing: who was away sees only that
    a worker is gone, and how many ranks train by now."""
    message = re.sub(r" \(\d+ more pods? waiting\)$", "", str(event["message"]))
    if event["reason"] == "WorldComplete":
        return ""
    return message.partition(" ")[0] if event["reason"] == "WorkerLost" else message


def _attempt_and_name(metadata: dict[str, Any]) -> tuple[str, str]:
    return metadata["labels"][contract.LABEL_ATTEMPT], metadata["name"]


async def restart_when_killed(scenario: Scenario, killer: Killer) -> None:
    """Run an operator; when it is killed, run another."""
    connection = scenario.cluster.operator_connection
    operator, running = await start_operator(connection, scenario.clock, kueue=True, gangs=GANGS, provisioning=True)
    try:
        await killer.struck.wait()
        await cut_off(operator, running)
        killer.dead = False
        operator, running = await start_operator(connection, scenario.clock, kueue=True, gangs=GANGS, provisioning=True)
        await running
    finally:
        await cut_off(operator, running)


def _credentials(status: dict[str, Any]) -> int:
    return int(status["ledger"]["credentials"])


def timeless(status: dict[str, Any]) -> dict[str, Any]:
    """A status without its times, and without numbers that a new operator has to skip.

    It can't read whose a Secret is, and it does not know whether a pod was made that it has never seen.
    """
    kept = {k: v for k, v in status.items() if k not in ("startTime", "completionTime")}
    changing = (
        "activeSince",
        "activeSeconds",
        "restartNotBefore",
        "credentials",
        "credentialsMounted",
        "incarnations",
    )
    kept["ledger"] = {k: v for k, v in status["ledger"].items() if k not in changing}
    kept["conditions"] = [{k: v for k, v in c.items() if k != "lastTransitionTime"} for c in status["conditions"]]
    if "start" in kept:
        kept["start"] = {"attempt": kept["start"]["attempt"], "known": sorted(kept["start"])}
    if "failure" in kept:
        kept["failure"] = {k: v for k, v in kept["failure"].items() if k != "time"}
    return kept


@pytest.mark.parametrize(
    ("course", "pods", "step"),
    [
        pytest.param(straight, 3, 1, id="straight"),
        pytest.param(winding, 9, 2, id="restarted-suspended-resumed"),
        pytest.param(elastic, 6, 2, id="elastic"),
        pytest.param(queued, 6, 2, id="queued"),
        pytest.param(in_kueue, 6, 2, id="queued-preempted-admitted"),
        pytest.param(in_gang, 9, 2, id="in-a-gang"),
        pytest.param(with_nodes_asked_for, 9, 2, id="nodes-asked-for"),
    ],
)
async def test_the_job_ends_the_same_wherever_the_operator_died(
    course: Course, pods: int, step: int, tmp_path: Path
) -> None:
    """Write by write, in the long courses at every second: the same end, every pod made once, nothing left behind,
    nothing told that was not true."""
    undisturbed = await live(course, Killer(at=0), tmp_path / "undisturbed")
    assert undisturbed.status["state"] == "Succeeded"
    assert len(undisturbed.pods_made) == len(set(undisturbed.incarnations)) == pods
    assert undisturbed.writes < MOST_WRITES
    gate = asyncio.Semaphore(AT_ONCE)
    lives = range(step, undisturbed.writes + 1, step)

    async def killed_at(at: int) -> Life:
        async with gate:
            return await live(course, Killer(at=at), tmp_path / str(at))

    killed = await asyncio.gather(*(killed_at(at) for at in lives))
    # A life has a write more or less, as events come together or apart; a write that is refused is not carried out.
    assert sum(life.killed for life in killed) > 0.75 * len(killed)
    for at, life in zip(lives, killed, strict=True):
        where = f"killed at write {at}"
        assert timeless(life.status) == timeless(undisturbed.status), where
        assert life.pods_made == undisturbed.pods_made, where
        assert len(life.incarnations) == len(set(life.incarnations)), where
        assert 0 <= _credentials(life.status) - _credentials(undisturbed.status) <= 1, where
        assert life.left_behind == [], where
        assert life.events <= undisturbed.events, where
