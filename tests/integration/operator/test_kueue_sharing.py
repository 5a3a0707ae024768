"""Teams that share a cluster through the real Kueue: what one lends to the other, whose turn it is."""

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commands import completed
from support.jobs import condition, state
from support.kubelet import ProcessRuntime
from support.kueue import (
    ADMISSION_CHECKS,
    CLUSTER_QUEUES,
    FLAVORS,
    LOCAL_QUEUES,
    PRIORITIES,
    PROVISIONING_CONFIGS,
    PROVISIONING_REQUESTS,
)
from support.queued import (
    GPU,
    Setting,
    described,
    gpu_job,
    open_cluster_queue,
    open_queue,
    scenario,
    submit,
)
from support.scenario import Scenario

from ringtrain_operator.cluster.api.resources import JOBS, PODS
from ringtrain_operator.plan.objects import LAUNCHER_ENDS_S

pytestmark = [pytest.mark.apiserver, pytest.mark.kueue]
ROOT = Path(__file__).parents[3]
Json = dict[str, Any]
RECLAIMS = {"preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"}}
KINDS = {r.kind: r for r in (CLUSTER_QUEUES, FLAVORS, LOCAL_QUEUES, PRIORITIES)}
EPOCHS = 80
TRAINED_WITHIN_S = 200.0  # some 30 s on an idle machine
WEIGHTS = re.compile(r"weights sha256: (\w+)")
RESUMED = re.compile(r"resumed from \S+ after (\d+) epochs")


async def open_cohort(s: Scenario, quotas: dict[str, int], lent: int = 0, **spec: Any) -> None:
    """A team's LocalQueue for each entry, with so many devices of its own; all of one cohort, which has `lent`."""
    await s.cluster.api.create(FLAVORS, None, described(FLAVORS, s.namespace, spec={}))
    cohort = {"cohortName": s.namespace}
    for team, gpus in quotas.items():
        await open_cluster_queue(s, f"{s.namespace}-{team}", gpus, team, **cohort, **spec)
    if lent:
        await open_cluster_queue(s, s.namespace, lent, **cohort)


async def test_what_a_team_has_lent_comes_back(setting: Setting, tmp_path: Path) -> None:
    """A job runs on another team's idle quota; when that team wants it, the job waits, and is not counted."""
    async with scenario(setting, tmp_path) as s:
        await open_cohort(s, {"a": 2, "b": 2}, **RECLAIMS)
        borrower = await submit(s, gpu_job("borrower", 4, queue="a"))
        await borrower.until_running(workers=4)
        owner = await submit(s, gpu_job("owner", 2, queue="b"))
        await borrower.until_condition("Queued", "True", "Preempted")
        borrower.skip(LAUNCHER_ENDS_S)
        await owner.until_running()
        assert await borrower.pods() == []
        owner.succeed()
        await borrower.until_running(attempt=2, workers=4)
        status = (await borrower.job())["status"]
        assert (status["restarts"], status["disruptions"]) == (0, 1)


async def test_a_team_with_less_than_its_share_gets_it(setting: Setting, tmp_path: Path) -> None:
    """Two teams that own nothing share four devices: the second job of the team that has all gives way."""
    async with scenario(setting, tmp_path) as s:
        await open_cohort(s, {"a": 0, "b": 0}, lent=4, **RECLAIMS)
        mine = [await submit(s, gpu_job(name, 2, queue="a")) for name in ("a-first", "a-second")]
        for one in mine:
            await one.until_running()
        other = await submit(s, gpu_job("b-first", 2, queue="b"))
        await other.until_condition("Queued", "True")
        while not (gave := [one for one in mine if state(await one.job()) == "Queued"]):
            await s.cluster.pause()
        gave[0].skip(LAUNCHER_ENDS_S)
        await other.until_running()
        assert [state(await one.job()) for one in mine].count("Queued") == 1
        assert condition(await gave[0].job(), "Queued")["reason"] == "Preempted"


async def test_room_goes_to_the_team_with_the_smaller_share_first(setting: Setting, tmp_path: Path) -> None:
    """Nobody is preempted; when a job ends, the team that has nothing is next, though its job came last."""
    async with scenario(setting, tmp_path) as s:
        await open_cohort(s, {"a": 0, "b": 0}, lent=4)
        running = [await submit(s, gpu_job(name, 2, queue="a")) for name in ("a-first", "a-second")]
        for one in running:
            await one.until_running()
        waits = await submit(s, gpu_job("a-third", 2, queue="a"))
        await waits.until_condition("Queued", "True", "insufficient")
        last = await submit(s, gpu_job("b-first", 2, queue="b"))
        await last.until_condition("Queued", "True", "insufficient")
        running[0].succeed()
        await last.until_running()
        assert state(await waits.job()) == "Queued"


async def open_provisioned_queue(s: Scenario, gpus: int) -> None:
    """LocalQueue `research`; who has quota there waits for nodes, too."""
    name, group = s.namespace, "kueue.x-k8s.io"
    config = {"provisioningClassName": "check-capacity.autoscaling.x-k8s.io", "managedResources": [GPU]}
    await s.cluster.api.create(PROVISIONING_CONFIGS, None, described(PROVISIONING_CONFIGS, name, spec=config))
    parameters = {"apiGroup": group, "kind": PROVISIONING_CONFIGS.kind, "name": name}
    check = {"controllerName": f"{group}/provisioning-request", "parameters": parameters}
    await s.cluster.api.create(ADMISSION_CHECKS, None, described(ADMISSION_CHECKS, name, spec=check))
    await open_queue(s, gpus, admissionChecksStrategy={"admissionChecks": [{"name": name}]})


async def test_nodes_are_there_before_the_pods_and_nothing_keeps_them_afterwards(
    setting: Setting, tmp_path: Path
) -> None:
    """Kueue asks the autoscaler, whose part the test plays; the pods take what was made for them; at the end the
    request is gone."""
    async with scenario(setting, tmp_path) as s:
        await open_provisioned_queue(s, 2)
        wide = await submit(s, gpu_job("wide", 2))
        await wide.until_condition("Queued", "True", f"admission check {s.namespace}")
        while not (requests := await s.cluster.api.select(PROVISIONING_REQUESTS, s.namespace)):
            await s.cluster.pause()
        assert await wide.pods() == []
        (name,) = {r["metadata"]["name"] for r in requests}
        await provisioned(s, name)
        await wide.until_running()
        pod = await s.cluster.api.get(PODS, s.namespace, "wide-worker-1")
        assert pod["metadata"]["annotations"]["autoscaling.x-k8s.io/consume-provisioning-request"] == name
        wide.succeed()
        await wide.until_state("Succeeded")
        await s.cluster.until_gone(PROVISIONING_REQUESTS, s.namespace, name)


async def provisioned(s: Scenario, name: str) -> None:
    """Set the conditions that an autoscaler sets once the nodes exist."""
    true = {"status": "True", "reason": "Done", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    conditions = [{"type": kind, **true} for kind in ("Accepted", "Provisioned")]
    status = {"status": {"conditions": conditions}}
    await s.cluster.api.patch(PROVISIONING_REQUESTS, s.namespace, name, status, subresource="status")


async def test_a_preempted_training_ends_with_the_weights_of_one_that_was_not(
    setting: Setting, tmp_path: Path, venv_bin: Path, runtime: ProcessRuntime
) -> None:
    """Real processes: an urgent job takes the place in mid-run; the training goes on from its checkpoint later."""
    options = ["--epochs", str(EPOCHS), "--batch-size", "64"]
    async with scenario(setting, tmp_path, runtime=runtime) as s:
        for obj in yaml.safe_load_all((ROOT / "manifests/samples/kueue/queue.yaml").read_text()):
            await s.cluster.api.create(KINDS[obj["kind"]], s.namespace, obj)
        _, sample = yaml.safe_load_all((ROOT / "manifests/samples/digits-queued.yaml").read_text())
        container(sample)["command"] += options
        slow = await submit(s, sample)
        saved = tmp_path / s.namespace / "claims" / "digits-queued"
        while not list(saved.rglob("ckpt-*.npz")):
            await s.cluster.pause()
        before = (await slow.job())["status"]
        urgent = await submit(s, urgent_job(sample))
        await slow.until_condition("Queued", "True", "Preempted")
        await until_succeeded(urgent)
        done = await until_succeeded(slow)
        log = b"".join([line async for line in s.cluster.api.pod_log(s.namespace, "digits-queued-launcher")]).decode()
    assert done["restarts"] == before["restarts"], "a preemption was counted"
    assert [done[n] - before[n] for n in ("attempt", "disruptions")] == [1, 1]
    (epochs,) = RESUMED.findall(log)
    assert 0 < int(epochs) < EPOCHS, "it was not preempted in mid-run"
    assert WEIGHTS.findall(log) == [await asyncio.to_thread(undisturbed, venv_bin, options)]


def container(sample: Json) -> Json:
    """The main container of a job's workers."""
    found: Json = sample["spec"]["worker"]["template"]["spec"]["containers"][0]
    return found


def urgent_job(sample: Json) -> Json:
    """A short job that leaves the other no room in the sample's queue."""
    made: Json = yaml.safe_load(yaml.safe_dump(sample))
    made["metadata"] = {"name": "urgent", "labels": {"kueue.x-k8s.io/priority-class": "urgent"}}
    del made["spec"]["checkpoint"]
    made["spec"]["worker"]["replicas"] = 1
    container(made)["command"] = ["python", "-c", "print('urgent work')"]
    container(made)["resources"]["requests"]["cpu"] = "5"
    return made


async def until_succeeded(s: Scenario) -> Json:
    """The job's status once it has succeeded."""

    def ended(job: Json | None) -> bool:
        return job is not None and state(job) in ("Succeeded", "Failed")

    done = await s.cluster.until(JOBS, s.namespace, s.name, ended, TRAINED_WITHIN_S)
    assert state(done) == "Succeeded", done["status"]
    status: Json = done["status"]
    return status


def undisturbed(venv_bin: Path, options: list[str]) -> str:
    """Return the weights that the same training prints when it runs alone."""
    command = [
        str(venv_bin / "ringtrain"),
        "run",
        "-np",
        "2",
        "--",
        "python",
        "examples/digits/train.py",
        *options,
    ]
    env = {**os.environ, "PATH": f"{venv_bin}:{os.environ['PATH']}"}
    done = completed(command, check=True, cwd=ROOT, env=env)
    (found,) = WEIGHTS.findall(done.stdout)
    return str(found)
