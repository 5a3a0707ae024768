"""The operator killed at every write of a job's life: the job ends the same, no pod twice, none orphaned."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.cluster import Cluster, fake_cluster
from support.fakeapi.server import Call
from support.jobs import job, state, termination_message
from support.kubelet import Kubelet, ScriptedRuntime
from support.operating import cut_off, start_operator

from ringtrain_operator.cluster.api import EVENTS, JOBS, PODS

PODS_OF_THE_JOB = ("digits-launcher", "digits-worker-0", "digits-worker-1")
MOST_WRITES = 40  # of one life; a test asserts that it is enough


@dataclass
class Killer:
    """Ends the operator at its write `at`: before that is carried out, or after, with no answer."""

    at: int
    when: str
    writes: int = 0
    struck: asyncio.Event = field(default_factory=asyncio.Event)
    dead: bool = False

    def __call__(self, call: Call, when: str) -> None:
        if not call.agent.startswith("ringtrain-operator"):
            return
        if self.dead:
            raise ConnectionAbortedError
        if call.is_write:
            self.writes += when == "before"
            if self.writes == self.at and when == self.when and not self.struck.is_set():
                self.dead = True
                self.struck.set()
                raise ConnectionAbortedError


@dataclass(frozen=True)
class Life:
    """How a job's life went."""

    status: dict[str, Any]
    writes: int
    pods_made: list[str]
    events: list[tuple[str, str]]
    killed: bool


async def live(killer: Killer, folder: Path) -> Life:
    """A whole life of a job, with the operator killed once on the way and started again."""
    async with fake_cluster() as c:
        assert c.fake is not None
        ns, runtime = await c.new_namespace(), ScriptedRuntime()
        async with Kubelet(c.api, runtime, folder, namespace=ns):
            c.fake.on_call = killer
            restarting = asyncio.create_task(restart_when_killed(c, killer))
            await c.api.create(JOBS, ns, job())
            for name in PODS_OF_THE_JOB:
                await c.until(PODS, ns, name, lambda p: p and p["status"]["phase"] == "Running")
            for name in PODS_OF_THE_JOB[1:]:
                runtime.finish(name)
            runtime.finish("digits-launcher", message=termination_message())
            done = await c.until(JOBS, ns, "digits", lambda j: state(j) in ("Succeeded", "Failed"))
            await c.until_quiet()
            c.fake.on_call = None
            restarting.cancel()
            await asyncio.gather(restarting, return_exceptions=True)
        events = [(e["reason"], e["message"]) for e in await c.api.select(EVENTS, ns)]
        made = [p.obj["metadata"]["name"] for p in c.fake.store.additions("pods")]
        return Life(done["status"], killer.writes, sorted(made), sorted(events), killer.struck.is_set())


async def restart_when_killed(c: Cluster, killer: Killer) -> None:
    """Run an operator; when it is killed, run another."""
    operator, running = await start_operator(c.operator_connection)
    try:
        await killer.struck.wait()
        await cut_off(operator, running)
        killer.dead = False
        operator, running = await start_operator(c.operator_connection)
        await running
    finally:
        await cut_off(operator, running)


def timeless(status: dict[str, Any]) -> dict[str, Any]:
    """A status without its times."""
    times = ("startTime", "completionTime", "activeSince", "activeSeconds")
    kept = {k: v for k, v in status.items() if k not in times}
    kept["conditions"] = [{k: v for k, v in c.items() if k != "lastTransitionTime"} for c in status["conditions"]]
    return kept


@pytest.mark.parametrize("when", ["before", "after"])
async def test_the_job_ends_the_same_wherever_the_operator_died(when: str, tmp_path: Path) -> None:
    """Write by write: the same end, every pod made once, every event there."""
    undisturbed = await live(Killer(at=0, when=when), tmp_path / "undisturbed")
    assert undisturbed.pods_made == sorted(PODS_OF_THE_JOB)
    assert undisturbed.writes < MOST_WRITES
    for at in range(1, MOST_WRITES):
        killed = await live(Killer(at=at, when=when), tmp_path / str(at))
        if not killed.killed:
            assert at > undisturbed.writes // 2, "the killer never struck"
            break
        where = f"killed {when} write {at}"
        assert timeless(killed.status) == timeless(undisturbed.status), where
        assert killed.pods_made == undisturbed.pods_made, where
        assert set(killed.events) <= set(undisturbed.events), where
